"""Training scripts as users write them: right ones in `right`."""
