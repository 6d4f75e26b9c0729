"""Set-up of the devices' tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("framefit.testing")
