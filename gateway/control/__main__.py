# `python -m gateway.control --fd N`: the control process, started by the parent only. N is its socket to the parent.

from __future__ import annotations

import argparse
import gc


def main() -> int:
    # All that is imported lives as long as the process: to look for garbage in it takes a sixth of the time.
    gc.disable()
    import trio  # noqa: PLC0415

    from gateway.control import app  # noqa: PLC0415
    from gateway.log.logs import DefaultLogSettings, configure_logging, install_hooks  # noqa: PLC0415
    from gateway.parent_link import ParentGone, attach_to_parent  # noqa: PLC0415

    gc.freeze()
    # Policies, and metadata of a large cluster, are up to a million objects without a cycle: to look for one after each
    # 700 of them takes longer than to make them, and holds up everything else.
    gc.set_threshold(50_000, 50, 50)
    gc.enable()
    parser = argparse.ArgumentParser(prog="python -m gateway.control", description="started by produce-gateway serve")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--log-format", choices=("console", "json"), default="console", help="of the first lines")
    args = parser.parse_args()
    link = attach_to_parent(args.fd)
    configure_logging(DefaultLogSettings(args.log_format))  # the configuration comes from the parent
    install_hooks()
    code = 0
    try:
        trio.run(app.run, link, lambda settings: configure_logging(settings.log))
    except* ParentGone:
        code = 1
    return code


if __name__ == "__main__":
    from gateway.system.process_exit import exit_process

    exit_process(main())
