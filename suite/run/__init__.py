"""One run of the suite, from its plan over its sessions to the record. `suite.run.campaign` leads it."""
