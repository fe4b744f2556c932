"""The audit of files without a cluster file: rules, published configurations, planted mutations."""
