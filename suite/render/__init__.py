"""Show records as text: in the terminal, as Markdown and as HTML pages. Imports neither torch nor pytest."""
