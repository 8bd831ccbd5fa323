"""The HTTP API: all that a client can do, as a router to include in one's own app or as an app that is ready to run.

>>> from pyrula.http import create_app, serve

Needs the extra `http`.
"""

from pyrula.http.access import Authenticate
from pyrula.http.app import HttpApp, create_app
from pyrula.http.openapi import describe_workflows
from pyrula.http.router import workflow_router
from pyrula.http.server import HttpServer, serve
from pyrula.http.tokens import Principal, Role, Token, Tokens, hash_of, new_token

__all__ = [
    "Authenticate",
    "HttpApp",
    "HttpServer",
    "Principal",
    "Role",
    "Token",
    "Tokens",
    "create_app",
    "describe_workflows",
    "hash_of",
    "new_token",
    "serve",
    "workflow_router",
]
