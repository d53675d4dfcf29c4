"""Workers of other engines. They run in a Python of their own and import nothing of gristmill."""
