"""Keys with certificates, as a host of a job gets them."""

import os
import sys

from launch.remote import identity


def issue(authority, names):
    """The certificate of a new key, and the key, as PEM."""
    key, request = identity.make(sys.executable, os.environ)
    return authority.sign(request, names), key
