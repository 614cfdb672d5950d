"""What type checkers know about the keywords of the callbacks."""

from __future__ import annotations

from torchnan.integrations.keywords import LightningKeywords, TransformersKeywords
from torchnan.recovery import Policy

OF_THE_GUARD = {"policy", "on_instability", "monitor"}


def test_callbacks_hand_on_the_keywords_of_a_guard():
    """Fails when a field of the policy cannot be given to a callback."""
    fields = Policy.options().keys() | Policy.OLD_NAMES.keys()
    assert TransformersKeywords.__annotations__.keys() == fields | OF_THE_GUARD
    assert LightningKeywords.__annotations__.keys() == fields - {"captures", "replay"} | OF_THE_GUARD
