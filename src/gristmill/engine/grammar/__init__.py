"""Answers held to a form: constraints compiled once, and a guide for each answer.

``sources.py`` turns a ``Constraint`` into llguidance's language (``gbnf.py`` and ``tags.py`` for
two that it does not speak), ``compiler.py`` compiles and keeps, ``guide.py`` walks along with one
answer and says which tokens may come next (reasoning and its budget are ``thought.py``),
``masks.py`` computes that while a step runs.
"""

from gristmill.engine.grammar.compiler import Grammars, Recipe, Spelling
from gristmill.engine.grammar.guide import Guide
from gristmill.engine.grammar.masks import Masks

__all__ = ["Grammars", "Guide", "Masks", "Recipe", "Spelling"]
