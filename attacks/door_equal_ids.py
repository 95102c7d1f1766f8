"""Two clients use the same request id and the same progress token at once. Each must get its own answer and progress."""

import json
import time

from lib import Gateway, check, in_parallel, serve, server_command

CLIENTS, ROUNDS = 8, 5


def work(arguments, context):
    token = context.message["params"].get("_meta", {}).get("progressToken")
    if token is not None:
        context.server.send({"method": "notifications/progress", "params": {
            "progressToken": token, "progress": 1, "message": arguments["who"]}})
    time.sleep(0.02)
    return arguments["who"]


serve({"work": work})

with Gateway("[servers.one]\n" + server_command()) as gateway:

    def client(index):
        wrong = []
        for turn in range(ROUNDS):
            who = f"{index}-{turn}"
            answer = gateway.modern("tools/call", {
                "name": "work", "arguments": {"who": who}, "_meta": {"progressToken": "same"}}, id="same")
            if who != answer.text or answer.message.get("id") != "same":
                wrong.append(f"{who} got {answer.message}")
            for message in answer.messages[:-1]:
                if message["params"].get("message") not in (None, who) or message["params"].get("progressToken") != "same":
                    wrong.append(f"{who} heard {json.dumps(message)}")
        return wrong

    for wrong in in_parallel(CLIENTS, client):
        check(wrong == [], wrong)
