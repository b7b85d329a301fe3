# What the documentation site has beside docs/: pages that are made of the program, and of files at the top of the
# repository. mkdocs.yml names hooks.py, which MkDocs runs.
#
#   hooks.py     pages that are added, and links that lead out of docs/
#   settings.py  every key of the configuration, by its models and descriptions
#   cli.py       every command, by its --help
#   rest.py      every path of the REST API, by its OpenAPI document
#   tables.py    tables of Markdown
