"""A node's evidence reduced before it travels, and all nodes' put together: few distinct things, and who shows which."""
