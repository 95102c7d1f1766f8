"""One key opens streams until all connections are taken. Another key must still be served."""

import resource

from lib import Gateway, check, serve, server_command

serve({"fast": lambda arguments, context: "fast"})

CONFIG = """
[auth]
keys_file = "keys.toml"
[servers.m]
"""

# The front uses half of the descriptors of its process.
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
with Gateway(CONFIG + server_command(), start=False) as gateway:
    eve, ada = gateway.key("eve"), gateway.key("ada")
    gateway.start()
    gateway.ready()
    # This process may have no more descriptors than the gateway; half of them is what it serves.
    streams = []
    for _ in range(300):
        stream = gateway.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, key=eve)
        heard = stream.recv(64)
        if b" 200 " not in heard:
            break
        streams.append(stream)
    check(len(streams) > 100, f"only {len(streams)} streams were opened: {heard!r}")
    check(len(streams) < 300, "there is no limit on connections")
    for turn in range(8):
        answer = gateway.call("fast", key=ada)
        check(answer.text == "fast", f"{len(streams)} streams of one key keep another out: {answer.status} {answer.body[:200]}")
    stream = gateway.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, key=ada)
    check(b" 200 " in stream.recv(64), "another key gets no stream")
    for open_stream in [*streams, stream]:
        open_stream.close()
