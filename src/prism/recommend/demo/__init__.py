"""`prism demo` and its report."""
