"""The link to the documentation in the HTML of an estimator."""

# Where the pages are, such as "https://eigenkern.example.org/stable". None: they are on
# no public host yet, and estimators show no link.
DOCUMENTATION_URL = None


class LinksToDocumentation:
    """Gives the HTML of an estimator a link to its page, where there is one."""

    _doc_link_module = "eigenkern"

    @property
    def _doc_link_template(self):
        return f"{DOCUMENTATION_URL}/generated/eigenkern.{{estimator_name}}.html"

    def _get_doc_link(self):
        return super()._get_doc_link() if DOCUMENTATION_URL else ""
