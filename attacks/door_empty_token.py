"""A token file is empty, or holds only white space. The gateway must refuse to start instead of accepting an empty token."""

from lib import Gateway, check

for content in ("", "\n", "   \n\t", "﻿\n"):
    gateway = Gateway('[http]\ntoken_file = "token"\n', files={"token": content}, start=False)
    with gateway:
        try:
            gateway.start()
            started = True
        except RuntimeError as ended:
            started, why = False, str(ended)
        if started:
            answer = gateway.modern("tools/list", headers={"Authorization": "Bearer "})
            check(False, f"it started with the token file {content!r} and answers {answer.status}")
        check("token" in why, f"the refusal does not name the token file: {why}")
