"""The link to the documentation in the HTML of an estimator."""

# Address of the pages, such as "https://eigenkern.example.org/stable". None: they are
# on no public host yet, and estimators show no link.
DOCUMENTATION_URL = None


def link_to_documentation(estimator):
    """Return the address of the page of an estimator; "" if there is none."""
    if not DOCUMENTATION_URL:
        return ""
    return f"{DOCUMENTATION_URL}/generated/eigenkern.{type(estimator).__name__}.html"
