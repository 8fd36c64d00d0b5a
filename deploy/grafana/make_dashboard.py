#!/usr/bin/env python3
"""Writes the Grafana dashboard of ovq-server to stdout; with --write to dashboards/ovq-server.json.

Rows are ordered from the first questions of a person on call to their explanations. A row is 24 units
wide; `targets` are (query, legend) pairs in which SEL stands for the chosen models and servers,
PROC for the chosen servers' processes.
"""

import json
import os
import sys

SEL = 'model=~"$model", instance=~"$instance"'
PROC = 'job="ovq-server", instance=~"$instance"'
OUTPUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dashboards", "ovq-server.json")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
FAULTS = "INTERNAL|UNKNOWN|DATA_LOSS|UNAVAILABLE|DEADLINE_EXCEEDED"
HTTP_CALLS = 'route=~"/(v1|ovq)/.*|/(de)?tokenize"'  # /health and the console are no calls
HTTP_FAULTS = "500|503|504"


def rate(metric, labels="", by=""):
    """Returns the per-second rate of a counter, summed over all labels except those in `by`."""
    selector = ", ".join(filter(None, [SEL, labels]))
    total = f"sum by ({by}) " if by else "sum "
    return f"{total}(rate({metric}{{{selector}}}[$__rate_interval]))"


def calls(codes="", statuses=""):
    """Returns the per-second rate of the calls over gRPC and HTTP with these labels, together."""
    rates = [f"rate({metric}{{{', '.join(filter(None, [SEL, *labels]))}}}[$__rate_interval])"
             for metric, *labels in (("ovq_requests_total", codes),
                                     ("ovq_http_requests_total", HTTP_CALLS, statuses))]
    return f"sum ({' or '.join(rates)})"


def percentiles(histogram, labels=""):
    """Returns queries for percentiles and mean of a histogram over all chosen servers."""
    targets = [(f"histogram_quantile({q}, {rate(histogram + '_bucket', labels, 'le')})", f"p{q * 100:g}")
               for q in (0.5, 0.9, 0.95, 0.99)]
    mean = f"{rate(histogram + '_sum', labels)} / {rate(histogram + '_count', labels)}"
    return [*targets, (mean, "mean")]


def series(title, description, unit, targets, width=8, **options):
    """Returns a panel of lines over time. Options: stack, min, max."""
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never",
              "spanNulls": False,
              "stacking": {"mode": "normal" if options.get("stack") else "none", "group": "A"}}
    defaults = {"unit": unit, "min": options.get("min", 0), "custom": custom}
    if "max" in options:
        defaults["max"] = options["max"]
    return {"type": "timeseries", "title": title, "description": description,
            "gridPos": {"w": width, "h": 8}, "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                        "tooltip": {"mode": "multi", "sort": "desc"}}}


def figure(title, description, unit, query, steps):
    """Returns a panel with one number. steps: [(from value, colour), ...], the first for everything
    below the second."""
    thresholds = {"mode": "absolute",
                  "steps": [{"color": colour, "value": value} for value, colour in steps]}
    return {"type": "stat", "title": title, "description": description,
            "gridPos": {"w": 3, "h": 4}, "targets": [(query, "")],
            "fieldConfig": {"defaults": {"unit": unit, "thresholds": thresholds}, "overrides": []},
            "options": {"colorMode": "background", "graphMode": "area", "justifyMode": "auto",
                        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}}


def good_below(warning, critical):
    return [(None, "green"), (warning, "yellow"), (critical, "red")]


def glance():
    ttft = f"histogram_quantile(0.99, {rate('ovq_time_to_first_token_seconds_bucket', by='le')})"
    itl = f"histogram_quantile(0.99, {rate('ovq_inter_token_latency_seconds_bucket', by='le')})"
    errors = f"""{calls(f'code=~"{FAULTS}"', f'status=~"{HTTP_FAULTS}"')} / {calls()}"""
    return [
        figure("Servers answering", "Servers whose metrics Prometheus can read. Fewer than you run: "
               "OvqServerDown.", "short", f"sum(up{{{PROC}}})", [(None, "red"), (1, "green")]),
        figure("Ready", "Servers that accept requests. Less than those answering: some drain or "
               "start.", "short", f"sum(ovq_ready{{{SEL}}})", [(None, "red"), (1, "green")]),
        figure("Error ratio", "Share of calls that ended by a fault of the server or too late: "
               f"{FAULTS.replace('|', ', ')}; over HTTP {HTTP_FAULTS.replace('|', ', ')}.", "percentunit", errors, good_below(0.001, 0.01)),
        figure("TTFT p99", "99th percentile of the time from a request's arrival to its first token.",
               "s", ttft, good_below(1, 2.5)),
        figure("ITL p99", "99th percentile of the time between two tokens of one answer.", "s", itl,
               good_below(0.1, 0.25)),
        figure("Waiting", "Requests that wait for admission.", "short",
               f"sum(ovq_requests_waiting{{{SEL}}})", good_below(1, 50)),
        figure("State memory promised", "Reserved part of the state memory of the fullest server. At "
               "100 % sessions are refused and requests wait.", "percentunit",
               f"max(ovq_session_state_utilization_ratio{{{SEL}}})", good_below(0.8, 0.9)),
    ]


def latency():
    return [
        series("Time to first token", "From a request's arrival, its wait in the queue included, to "
               "its first token. The prompt's length is in it.", "s",
               percentiles("ovq_time_to_first_token_seconds")),
        series("Inter-token latency", "Gaps between two tokens of one answer, every gap counted.",
               "s", percentiles("ovq_inter_token_latency_seconds")),
        series("Time per output token", "Mean gap of an answer, every answer counted once.", "s",
               percentiles("ovq_time_per_output_token_seconds")),
        series("End to end (Generate)", "From the arrival of a Generate call to its end.", "s",
               percentiles("ovq_request_duration_seconds", 'method="Generate"')),
        series("Time in the queue", "Wait for admission, that is for state memory.", "s",
               percentiles("ovq_request_queue_seconds")),
        series("Prompt and answer, p95", "95th percentile of the time that prompts (prefill) and "
               "answers (decode) take.", "s",
               [(f"histogram_quantile(0.95, {rate(f'ovq_request_{phase}_seconds_bucket', by='le')})",
                 phase) for phase in ("prefill", "decode")]),
    ]


def load():
    return [
        series("Calls by method", "Calls that ended, by RPC. A Chat is one call for its whole "
               "stream.", "reqps", [(rate("ovq_requests_total", by="method"), "{{method}}")],
               stack=True),
        series("Calls that failed, by code", "Every status but OK. INVALID_ARGUMENT and NOT_FOUND are "
               "the callers' mistakes, RESOURCE_EXHAUSTED a refusal.", "reqps",
               [(rate("ovq_requests_total", 'code!="OK"', "code"), "{{code}}")]),
        series("Generations by how they ended", "stop: end of sequence or a stop string; length: "
               "max_tokens; cancelled: by the caller.", "reqps",
               [(rate("ovq_requests_finished_total", by="reason"), "{{reason}}")], stack=True),
        series("Tokens per second", "Tokens computed in steps, as they are: of prompts (prefill) and "
               "of answers (decode); and those of finished requests, counted at a request's end.",
               "short", [(rate("ovq_step_tokens_sum", by="phase"), "{{phase}}"),
                         (rate("ovq_prompt_tokens_total"), "prompts, finished"),
                         (rate("ovq_generated_tokens_total"), "answers, finished")]),
        series("Guessed tokens", "Of --speculate: tokens that were guessed and checked in steps, and "
               "those that were right, hence generated without a step of their own.", "short",
               [(rate("ovq_drafted_tokens_total"), "checked"),
                (rate("ovq_accepted_tokens_total"), "right")]),
        series("Requests in the server", "Running ones hold a state; blocked ones among them wait for "
               "their reader; waiting ones for memory.", "short",
               [(f"sum(ovq_requests_{state}{{{SEL}}})", state)
                for state in ("running", "blocked", "waiting")]),
        series("Prompt tokens in the queue", "What the waiting requests will have to prefill.",
               "short", [(f"sum(ovq_waiting_prompt_tokens{{{SEL}}})", "prompt tokens")]),
        series("Tokens of a request", "Median and 95th percentile of prompts and answers.", "short",
               [(f"histogram_quantile({q}, {rate(f'ovq_request_{what}_tokens_bucket', by='le')})",
                 f"{what} p{q * 100:g}") for what in ("prompt", "generated") for q in (0.5, 0.95)],
               width=12),
        series("Drain and ready", "ready falls and draining rises at SIGTERM; both are back at the "
               "next start.", "short", [(f"sum by (instance) (ovq_ready{{{SEL}}})", "ready {{instance}}"),
                                        (f"sum by (instance) (ovq_draining{{{SEL}}})",
                                         "draining {{instance}}")], width=12, max=1),
    ]


def capacity():
    def state_bytes(kind):
        return f'sum(ovq_session_state_bytes{{{SEL}, kind="{kind}"}})'
    return [
        series("State memory and what a key/value cache would take", "committed: memory in use; "
               "reserved: promised to live sessions; budget: --state-memory. The last line is what "
               "the same conversations would need as full key/value caches.", "bytes",
               [*((state_bytes(kind), kind) for kind in ("committed", "reserved", "budget")),
                (f"sum(ovq_equivalent_kv_cache_bytes{{{SEL}}})", "as full key/value caches")],
               width=12),
        series("Session slots", "slots: sessions of the first cache policy's default cap that fit. used: "
               "live sessions of any cap, so it can be above the slots when sessions ask for less.",
               "short", [(f"sum(ovq_session_slots{{{SEL}}})", "slots"),
                         (f"sum(ovq_session_slots_used{{{SEL}}})", "used")], width=6),
        series("State memory promised, by server", "Reserved part of the budget.", "percentunit",
               [(f"ovq_session_state_utilization_ratio{{{SEL}}}", "{{instance}}")], width=6, max=1),
        series("Sessions by state", "active: a request runs on it; idle: kept until its time to live "
               "is over.", "short", [(f"sum by (state) (ovq_sessions{{{SEL}}})", "{{state}}")],
               stack=True),
        series("Refusals by reason", "Requests and sessions refused: no place in the queue, no state "
               "memory, too many sessions, draining.", "reqps",
               [(rate("ovq_admission_rejections_total", by="reason"), "{{reason}}")]),
        series("What happens to sessions", "Sessions opened, copied, taken back, closed, and ended for being "
               "idle too long.", "ops", [(rate("ovq_session_events_total", by="event"), "{{event}}")]),
        series("Opening, copying, rewinding and closing a session, p95", "95th percentile of a call's time: open with "
               "its prompt prefilled, fork with its copies made, rewind with its tokens replayed, close "
               "with its memory released.", "s",
               [("histogram_quantile(0.95, "
                 f"{rate('ovq_session_event_duration_seconds_bucket', by='le, event')})",
                 "{{event}}")], width=12),
        series("What sessions go back by", "The host's memory beside the states: sessions' tokens, and "
               "copies of earlier states (--checkpoint-memory).", "bytes",
               [(f"sum by (kind) (ovq_session_history_bytes{{{SEL}}})", "{{kind}}")], width=12),
        series("Session store: what a turn waits for", "From a turn's end to its tokens being in --session-dir or "
               "--session-store, and to a state being back from there.", "s",
               [(f'histogram_quantile(0.95, {rate("ovq_session_disk_duration_seconds_bucket", by="le, kind")})',
                 "{{kind}} p95")], width=12),
        series("Session store: failures", "Changes of sessions that could not be written or read, per second: each "
               "call that waited for one ended with DATA_LOSS. Refused: another server has the session.", "short",
               [(rate("ovq_session_disk_errors_total", by="kind"), "{{kind}}"),
                (rate("ovq_session_writes_fenced_total"), "refused")], width=12),
        series("Session store: sessions of each server", "How many sessions each server owns.", "short",
               [(f"sum by (instance) (ovq_sessions_owned{{{SEL}}})", "{{instance}}")], width=12),
        series("Tokens read again", "Per second, to take sessions back.", "short",
               [(rate("ovq_replayed_tokens_total"), "tokens/s")], width=12),
        series("Prompts whose beginning was cached", "Of the prompts of which a part may be cached, those that "
               "met a cached state.", "percentunit",
               [(f"{rate('ovq_prefix_hits_total')} / {rate('ovq_prefix_queries_total')}", "hits")],
               width=6, max=1),
        series("Tokens taken from the prefix cache", "Per second: prompt tokens that were not read.", "short",
               [(rate("ovq_prefix_cached_tokens_total", by="kind"), "{{kind}}")], width=6),
        series("Memory of the prefix cache", "The host's memory for states behind the beginnings of prompts "
               "(--prefix-memory).", "bytes",
               [(f"sum by (kind) (ovq_prefix_bytes{{{SEL}}})", "{{kind}}")], width=6),
        series("States that the prefix cache evicted", "Per second, the one used longest ago first. As many as "
               "misses: the budget is too small for what comes again.", "short",
               [(rate("ovq_prefix_evictions_total"), "states/s")], width=6),
        series("Prompts and answers that left no copy", "Per second. no_memory: the budget is less than a state; "
               "busy: many answers ended at once.", "short",
               [(rate("ovq_prefix_not_kept_total", by="reason"), "{{reason}}")], width=6),
        series("Tokens read again for want of a copy", "Per second: prompt tokens that the prefix cache knew.", "short",
               [(rate("ovq_prefix_lost_tokens_total"), "tokens/s")], width=6),
        series("Tokens of a session at its end", "How long conversations are when they are closed or "
               "expire.", "short", percentiles("ovq_session_tokens"), width=12),
    ]


def engine():
    return [
        series("Step time by phase", "One step computes all running requests once. mixed: prompts and "
               "answers together, the price of other people's prompts.", "s",
               [(f"histogram_quantile({q}, {rate('ovq_step_duration_seconds_bucket', by='le, phase')})",
                 f"{{{{phase}}}} p{q * 100:g}") for q in (0.5, 0.99)]),
        series("Tokens of a step", "Batch size: mean tokens of the steps that had any of the phase; "
               "--max-batch-tokens bounds the sum.", "short",
               [(f"{rate('ovq_step_tokens_sum', by='phase')} / {rate('ovq_step_tokens_count', by='phase')}",
                 "{{phase}}")]),
        series("Steps", "Steps a second. 0 with running requests is a stalled engine.", "ops",
               [(rate("ovq_step_duration_seconds_count", by="phase"), "{{phase}}")], stack=True),
        series("Time of a row", "As the engine has learnt it on its machine: a row of an answer with its draw, "
               "of a prompt, a further draw, a log-probability.", "s",
               [(f"avg by (kind) (ovq_row_seconds{{{SEL}}})", "{{kind}}")]),
        series("The host's work for calls", "Processors that threads use to parse, tokenize and write; and what is taken "
               "from clients' parts: what the engine's threads waited for one meanwhile, and copies of states.", "short",
               [(rate("ovq_host_seconds_total"), "used"), (rate("ovq_host_charged_seconds_total"), "charged")]),
        series("Calls held", "Times a second that a client's next call waited because the client had used more than "
               "its part.", "ops", [(rate("ovq_calls_held_total"), "held")]),
        series("Dictionary updates", "Tokens that chunk updates consumed, per layer and head: as new "
               "slots, or merged into live ones or evicted, which most are as dictionaries fill. "
               "Only models with such layers.", "short",
               [(rate("ovq_dictionary_updates_total", by="op"), "{{op}}/s")], stack=True),
        series("Dictionary fill", "Live slots / cap of a request's state at its end; under the paper's "
               "rule one half at as many tokens as the cap. Only models with such layers.", "percentunit",
               percentiles("ovq_dictionary_fill_ratio"), max=1),
        series("Live centroids", "Centroids per layer and head, all live sessions together.", "short",
               [(f"sum(ovq_centroids_live{{{SEL}}})", "centroids")]),
        series("Slow readers", "Requests that stand still at one time because their readers are slow, "
               "counted when they go on.", "short",
               [(rate("ovq_stream_blocked_seconds_total"), "requests")]),
        series("Steps that hang, output that is not a number", "Steps that took longer than --step-timeout, and "
               "calls that ended because the model's output was not a number.", "short",
               [(f"sum(increase(ovq_step_timeouts_total{{{SEL}}}[$__rate_interval]))", "steps"),
                (f"sum(increase(ovq_nonfinite_logits_total{{{SEL}}}[$__rate_interval]))", "calls")]),
        series("From cancellation to memory given back", "A cancelled request frees its state within "
               "a step.", "s", percentiles("ovq_cancel_release_seconds")),
    ]


def constraints():
    return [
        series("Forms compiled", "Time to compile the form of an answer that was not kept, on a thread "
               "of the caller's share.", "s", percentiles("ovq_constraint_compile_seconds")),
        series("Forms asked for", "Compiled ones were not kept, known ones were; refused ones by their "
               "cause: what is not supported, too large, no memory.", "reqps",
               [(rate("ovq_constraint_compile_seconds_count"), "compiled"),
                (rate("ovq_constraint_cache_hits_total"), "known"),
                (rate("ovq_constraint_refusals_total", by="cause"), "refused: {{cause}}")]),
        series("Engine's time for forms", "Share of the engine's thread that masks and places of "
               "answers take.", "percentunit", [(rate("ovq_constraint_seconds_total"), "share")]),
        series("Masks and forced tokens", "Masks that were looked up or made; tokens of which a form "
               "left no choice, so that the model was not asked.", "short",
               [(rate("ovq_constraint_masks_total"), "masks"),
                (rate("ovq_constraint_forced_tokens_total"), "forced tokens")]),
        series("Forms whose masks are in memory", "At the budget the masks used longest ago go.", "short",
               [(f"sum by (instance) (ovq_constraint_matchers{{{SEL}}})", "{{instance}}")]),
        series("Memory of forms", "Masks in use and allowed, and compiled forms "
               "(--constraint-memory).", "bytes",
               [(f"sum by (kind) (ovq_constraint_mask_bytes{{{SEL}}})", "masks, {{kind}}"),
                (f"sum(ovq_constraint_cache_bytes{{{SEL}}})", "compiled forms")]),
    ]


def process():
    return [
        series("Scrapes", "Time of a scrape, by server; gaps are scrapes that failed.", "s",
               [(f"scrape_duration_seconds{{{PROC}}}", "{{instance}}")]),
        series("Samples of a scrape", "Nearly constant: all label sets but those of requests over HTTP "
               "exist from the start.", "short",
               [(f"scrape_samples_scraped{{{PROC}}}", "{{instance}}")]),
        series("CPU", "Cores in use, by server.", "short",
               [(f"rate(process_cpu_seconds_total{{{PROC}}}[$__rate_interval])", "{{instance}}")]),
        series("Memory of the process", "Resident memory; on a CPU weights and committed states are "
               "part of it.", "bytes",
               [(f"process_resident_memory_bytes{{{PROC}}}", "resident {{instance}}")]),
        series("Memory of the device", "Weights and states; of a GPU also what is free, as its driver "
               "counts.", "bytes",
               [(f"sum by (device, kind) (ovq_device_memory_bytes{{{PROC}}})", "{{device}} {{kind}}")]),
        series("Address space", "Virtual memory: states reserve their largest size as addresses, so it "
               "is far above what is resident.", "bytes",
               [(f"process_virtual_memory_bytes{{{PROC}}}", "{{instance}}")]),
        series("Open files and connections", "At the limit no connection is accepted.", "short",
               [(f"process_open_fds{{{PROC}}}", "open {{instance}}"),
                (f"process_max_fds{{{PROC}}}", "limit {{instance}}")]),
        series("Threads", "Threads of the process.", "short",
               [(f"process_threads{{{PROC}}}", "{{instance}}")]),
        series("Uptime", "Falls to 0 at a restart, which ends all sessions that are not on disk.", "s",
               [(f"time() - process_start_time_seconds{{{PROC}}}", "{{instance}}")]),
    ]


def security():
    return [
        series("Calls that failed to authenticate", "By reason. Only servers with --tenants.", "reqps",
               [(f"sum by (reason) (rate(ovq_auth_failures_total{{{PROC}}}[$__rate_interval]))",
                 "{{reason}}")]),
        series("Reloads of credentials", "Reloads of certificates and tenants after their files "
               "changed, by result.", "short",
               [(f"sum by (what, result) (ovq_credentials_reloads_total{{{PROC}}})",
                 "{{what}} {{result}}")]),
        series("Certificate", "Time until the certificate expires. Only servers with TLS.", "s",
               [(f"ovq_tls_certificate_expiry_timestamp_seconds{{{PROC}}} - time()", "{{instance}}")]),
    ]


def http():
    return [
        series("Requests over HTTP, by status", "Answers by their status; 499: the client had gone. Only servers with "
               "--http-listen.", "reqps",
               [(rate("ovq_http_requests_total", by="status"), "{{status}}")]),
        series("HTTP requests by route", "Which paths are asked for. Only servers with --http-listen.", "reqps",
               [(rate("ovq_http_request_duration_seconds_count", by="route"), "{{route}}")]),
        series("HTTP connections", "Open ones, and answers being streamed on them; above --http-max-connections the "
               "idle ones end, and then new ones are refused.", "short",
               [(f"sum(ovq_http_connections{{{SEL}}})", "open"),
                (f"sum(ovq_http_open_streams{{{SEL}}})", "streams"),
                (rate("ovq_http_connections_refused_total", by="reason"), "refused a second: {{reason}}")]),
    ]


ROWS = [
    ("At a glance", glance), ("What users feel", latency), ("Load and errors", load),
    ("Memory and sessions", capacity), ("Engine", engine), ("Answers with a form", constraints), ("Process and scrapes", process),
    ("Security", security), ("HTTP front", http),
]


def variables():
    def query(name, label, text):
        return {"type": "query", "name": name, "label": label, "datasource": DATASOURCE,
                "query": {"query": text, "refId": name}, "definition": text, "refresh": 2, "sort": 1,
                "multi": True, "includeAll": True, "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"], "selected": True}}
    return [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus",
         "current": {}},
        query("model", "Model", "label_values(ovq_ready, model)"),
        query("instance", "Server", 'label_values(ovq_ready{model=~"$model"}, instance)'),
    ]


def panels():
    """Returns all panels with ids and positions, a row's title before each row."""
    placed, y = [], 0
    for title, make in ROWS:
        placed.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        x, y, height = 0, y + 1, 0
        for panel in make():
            place = panel["gridPos"]
            if x + place["w"] > 24:
                x, y, height = 0, y + height, 0
            place.update(x=x, y=y)
            x, height = x + place["w"], max(height, place["h"])
            panel["datasource"] = DATASOURCE
            panel["targets"] = [{"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend,
                                 "datasource": DATASOURCE}
                                for i, (query, legend) in enumerate(panel["targets"])]
            placed.append(panel)
        y += height
    for number, panel in enumerate(placed, 1):
        panel["id"] = number
    return placed


def dashboard():
    return {
        "title": "ovq-server", "uid": "ovq-server", "tags": ["ovq", "inference"],
        "description": "Made by deploy/grafana/make_dashboard.py; alerts and what to do about them: "
                       "docs/operations.md.",
        "schemaVersion": 38, "version": 1, "editable": True, "graphTooltip": 1,
        "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": variables()}, "annotations": {"list": []}, "links": [],
        "panels": panels(),
    }


def text():
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        os.makedirs(os.path.dirname(OUTPUT), exist_ok=True)
        with open(OUTPUT, "w") as file:
            file.write(text())
    elif sys.argv[1:]:
        sys.exit(f"usage: {sys.argv[0]} [--write]")
    else:
        sys.stdout.write(text())
