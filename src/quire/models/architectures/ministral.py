"""Ministral (8B of 2024): Mistral, of whose layers some slide."""

from __future__ import annotations

from quire.models.architectures import mistral

parse = mistral.parse
