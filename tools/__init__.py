# Programs for releases and documentation; not installed, and not imported by the product.
#
#   requirements.py  a project's dependencies as pip's requirements: the layer of the image that changes seldom
#   constraints.py   constraints.txt: the versions that `make test` ran with
#   bill.py          the bill of materials of a release (CycloneDX)
#   changelog.py     the part of CHANGELOG.md that a release is announced with
#   site/            what the documentation site has beside docs/
