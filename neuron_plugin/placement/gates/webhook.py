"""The mutating admission webhook that puts the gate on new pods, for API servers without MutatingAdmissionPolicy.

It also takes off any new pod what only the placement controller and the plugin may say. A copied manifest has it, and
the policy that fences it would refuse the pod, which ``kubectl replace --force`` has deleted by then.

The API server's configuration says which pods to send (``matchConditions``). The same conditions are read here again,
because a webhook that is set up by hand may be sent every pod. Any replica answers. A pod that is not gated is
scheduled as without us, so what cannot be read is let in as it is, and the answer says why.

The API server has no client certificate that a webhook could know, so this is an application of its own, on a port
where nothing else can be asked for.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

import msgspec
from aiohttp import web

from neuron_plugin.allocation.keys import GATE, NODE_KEY
from neuron_plugin.allocation.node_rules import DEFAULT_SCHEDULER
from neuron_plugin.cluster import DecodeError, Pod
from neuron_plugin.cluster.api import JsonObject
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.placement.gates.writes import WRITTEN_KEYS

PATH = "/gate"
"""Followed by the name of a scheduler that is no more, if there is one: its pods are ours to place, too."""
COPIES_PATH = "/copies"
MOST_BYTES = 4 << 20
"""The API server itself takes no larger object than 3 MiB."""


class _Request(msgspec.Struct):
    uid: str
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, rename="camel"):
    request: _Request
    api_version: str = ""


class ReviewError(ValueError):
    """A body that is no AdmissionReview of this API's version; the text says what was expected."""


def admit(body: bytes, former: str = "", *, claims: bool = False) -> bytes:
    """The answer to an AdmissionReview: the pod as it is, or with the gate and without what only we may say of it.

    For ``former`` and ``claims`` see ``patch``.

    Raises:
        ReviewError: the body is no ``admission.k8s.io/v1`` AdmissionReview with a UID.
    """
    return _answer(body, partial(patch, former=former, claims=claims))


def admit_copy(body: bytes) -> bytes:
    """The answer to an AdmissionReview: the pod without what only we may say of it.

    Raises:
        ReviewError: as ``admit``.
    """
    return _answer(body, lambda manifest: _without_placement(PODS.decode(manifest)))


def _answer(body: bytes, changes_of: Callable[[msgspec.Raw], list[JsonObject]]) -> bytes:
    try:
        review = msgspec.json.decode(body, type=_Review)
    except msgspec.MsgspecError as error:
        raise ReviewError(f"not an AdmissionReview: {error}; expected admission.k8s.io/v1 with a request") from None
    response: JsonObject = {"uid": review.request.uid, "allowed": True}
    try:
        changes = changes_of(review.request.object) if review.request.operation == "CREATE" else []
    except DecodeError as error:
        changes, response["warnings"] = [], [f"neuron-plugin does not place the pod: {error}"]
    if changes:
        response |= {"patchType": "JSONPatch", "patch": b64encode(msgspec.json.encode(changes)).decode()}
    return msgspec.json.encode({"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response})


def patch(manifest: msgspec.Raw, former: str = "", *, claims: bool = False) -> list[JsonObject]:
    """What is changed of a new pod, as a JSON patch; nothing of one that is not ours to place.

    A pod that asks for Neuron in a way that cannot be read is gated, too: its event says what is wrong. A pod that
    names the ``former`` scheduler goes to the default one: it would wait for ever for a scheduler that is no more.
    With ``claims`` each pod that has resource claims is gated: for which devices they are is not known here, and the
    placement controller releases those that are not ours.

    Raises:
        DecodeError: this is no pod.
    """
    pod = PODS.decode(manifest)
    record = neuron_pod(pod)
    rules = record.rules
    may_be_ours = record.request or (claims and record.claims)
    if pod.node_name or pod.controller[0] == "DaemonSet" or not may_be_ours:
        return []
    if rules.scheduler_name not in ("", DEFAULT_SCHEDULER, former):
        return []
    changes: list[JsonObject] = []
    if rules.scheduler_name not in ("", DEFAULT_SCHEDULER):
        changes.append({"op": "replace", "path": "/spec/schedulerName", "value": DEFAULT_SCHEDULER})
    if not rules.gates:
        changes.append({"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]})
    elif GATE not in rules.gates:
        changes.append({"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": GATE}})
    return changes + _without_placement(pod)


def _without_placement(pod: Pod) -> list[JsonObject]:
    """Take off a new pod what only the placement controller and the plugin may say; nothing may trust it there."""
    ours = [("annotations", key) for key in WRITTEN_KEYS if key in pod.annotations]
    ours += [("labels", key) for key in (NODE_KEY,) if key in pod.labels]
    return [{"op": "remove", "path": f"/metadata/{field}/{key.replace('/', '~1')}"} for field, key in ours]


def application(*, claims: bool = False) -> web.Application:
    """What the API server asks; for ``claims`` see ``patch``."""

    async def handle(request: web.Request) -> web.Response:
        try:
            body = await request.read()
            is_copy = request.path == COPIES_PATH
            former = request.match_info.get("former", "")
            answer = admit_copy(body) if is_copy else admit(body, former, claims=claims)
        except ReviewError as error:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=f"{error}\n")
        return web.Response(body=answer, content_type="application/json")

    app = web.Application(client_max_size=MOST_BYTES)
    app.add_routes([web.post(PATH, handle), web.post(PATH + "/{former}", handle), web.post(COPIES_PATH, handle)])
    return app
