# Programs for releases, documentation and what is generated; not installed, and not imported by the product.
#
#   constraints.py    constraints.txt: the versions that `make test` ran with
#   locks.py          requirements/*.txt: versions and hashes of what releases are made with, and of what images have
#   changelog.py      the part of CHANGELOG.md that a release is announced with
#   worker_config.py  gateway/worker_config.py: what workers get of the configuration
#   site/             what the documentation site has beside docs/
