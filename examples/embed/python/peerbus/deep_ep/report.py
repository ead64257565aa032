# SPDX-License-Identifier: MIT
"""The report of `peerbus.deep_ep.check`: what each platform says of each call site."""

import ast
import glob
import json
import linecache
import os
import textwrap

from .calls import findings

_numbers = (("ranks", "{} ranks"), ("tokens", "{} tokens"), ("max_tokens", "of at most {}"),
            ("hidden", "hidden {}"), ("top_k", "top_k {}"), ("experts", "{} experts"),
            ("tensors", "{} tensors"))
_platforms = {"unrestricted": "peerbus, on CPUs", "deepep_v1": "DeepEP's Buffer, on NVIDIA GPUs",
              "ascend_a2": "DeepEP-Ascend on Atlas A2", "ascend_a3": "DeepEP-Ascend on Atlas A3",
              "deepep_v2_5": "DeepEP 2.5's EPBuffer and BucketBuffer, on NVIDIA GPUs",
              "ascend_950": "DeepSeek's DeepEP-Ascend on Ascend 950DT"}
_words = (("ok", "ok: the platform takes the call as it is"),
          ("set env", "set env: once the variables at the end are set"),
          ("to change", "to change: so many things fail there, or are ignored"),
          ("not checked", "not checked: every call raised before its sizes were known"),
          ("other API", "other API: the platform has no such class"))
_headings = {"refused": "change", "no_effect": "change", "differs": "note"}


def read(folder):
    """Returns what the processes have written, as {(file, line, function, operation): site}."""
    sites = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        lines = [json.loads(line) for line in open(path)]
        counts = next((line["counts"] for line in lines if "counts" in line), [])
        for line in lines:
            if "error" in line:
                site = _site_of(sites, line["site"], line["operation"])
                site["processes"].add(path)
                if line["error"] not in site["errors"]:
                    site["errors"].append(line["error"])
            if "call" not in line:
                continue
            call = line["call"]
            call["options"] = tuple(call["options"])
            site = _site_of(sites, line["site"], call["operation"])
            site["calls"] += counts[line["key"]] if line["key"] < len(counts) else 1
            site["processes"].add(path)
            if call not in site["shapes"]:
                site["shapes"].append(call)
    return sites


def _site_of(sites, place, operation):
    return sites.setdefault((*place, operation),
                            {"calls": 0, "processes": set(), "shapes": [], "errors": []})


def source_of(file, line):
    """Returns the statement of a call, or as much of it as fits a report; "" if it is not known."""
    lines = [text.rstrip("\n") for text in linecache.getlines(file)]
    try:
        nodes = [node for node in ast.walk(ast.parse("\n".join(lines)))
                 if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno]
    except SyntaxError:
        return ""
    if not nodes:
        return ""
    last = min(nodes, key=lambda node: node.end_lineno - node.lineno)
    shown = lines[last.lineno - 1:last.end_lineno]
    return textwrap.dedent("\n".join(shown if len(shown) <= 6 else shown[:5] + ["..."]))


def _number(text):
    return int(text) if text.isdigit() else -1


def judge(platform, shapes):
    """Returns what a platform says of the calls of a site: (findings, variables to set, to unset),
    variables as {name: (value, reason)}. Of several values of one argument, the largest is shown."""
    found, to_set, to_unset = {}, {}, {}
    for call in shapes:
        for each in findings(platform, call):
            if each["kind"] == "set":
                if _number(each["expected"]) > _number(to_set.get(each["what"], ("",))[0]):
                    to_set[each["what"]] = (each["expected"], each["advice"])
            elif each["kind"] == "unset":
                to_unset.setdefault(each["what"], (None, each["advice"]))
            else:
                key = (each["kind"], each["what"], each["expected"])
                known = found.setdefault(key, dict(each, shapes=0))
                if _number(each["given"]) > _number(known["given"]):
                    known.update(given=each["given"], advice=each["advice"])
                known["shapes"] += 1
    return list(found.values()), to_set, to_unset


def examine(sites, platforms, target_ranks=None):
    """Returns the judgement of all platforms about all sites, as plain data."""
    judged = []
    for (file, line, function, operation), site in sorted(sites.items()):
        shapes = [dict(call, ranks=target_ranks or call["ranks"]) for call in site["shapes"]]
        entry = {"file": file, "line": line, "function": function, "operation": operation,
                 "source": source_of(file, line), "calls": site["calls"],
                 "processes": len(site["processes"]), "shapes": len(shapes),
                 "errors": site["errors"],
                 "shape": shape_text(shapes), "platforms": {}}
        for platform in platforms:
            found, to_set, to_unset = judge(platform, shapes)
            entry["platforms"][platform] = {
                "fits": bool(shapes) and not any(_headings[each["kind"]] == "change" for each in found),
                "findings": found, "set": {name: value for name, (value, _) in to_set.items()},
                "why": {name: why for name, (_, why) in {**to_set, **to_unset}.items()},
                "unset": list(to_unset)}
        judged.append(entry)
    return judged


def shape_text(shapes):
    """Returns the calls of a site in words: the range of each number, and the options."""
    words = []
    for name, text in _numbers:
        values = sorted({call[name] for call in shapes if call.get(name) is not None})
        if values and values != [0] or (name == "tokens" and values):
            span = str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
            if name == "max_tokens":
                words[-1] += " " + text.format(span)
            else:
                words.append(text.format(span))
    words += sorted({call["element"] for call in shapes if "element" in call})
    for option in dict.fromkeys(name for call in shapes for name in call["options"]):
        used = sum(option in call["options"] for call in shapes)
        text = "-1 in topk_idx" if option == "dropped" else option
        words.append(text if used == len(shapes) else f"{text} (in some)")
    return ", ".join(words)


def cell(verdict):
    """Returns a platform's verdict about a site in a word or two."""
    if any(each["what"].startswith("deep_ep.") for each in verdict["findings"]):
        return "other API"
    if not verdict["fits"] and not verdict["findings"]:
        return "not checked"
    changes = sum(_headings[each["kind"]] == "change" for each in verdict["findings"])
    if changes:
        return f"{changes} to change"
    return "ok, set env" if verdict["set"] else "ok"


def short(file, folder):
    """Returns the path of a file as a reader knows it: below the folder of the program, if it is."""
    relative = os.path.relpath(file, folder)
    return file if relative.startswith("..") else relative


def environment(judged, platform):
    """Returns the variables that a platform needs for all sites: ({name: value}, [names])."""
    to_set, to_unset = {}, []
    for entry in judged:
        verdict = entry["platforms"][platform]
        for name, value in verdict["set"].items():
            if _number(value) > _number(to_set.get(name, "")):
                to_set[name] = value
        to_unset += [name for name in verdict["unset"] if name not in to_unset]
    return to_set, to_unset


def as_text(judged, platforms, heading, folder):
    """Returns the report for people."""
    lines = [heading, ""]
    if not judged:
        return "\n".join(lines + ["No call of deep_ep was made.", ""])
    labels = [f"[{i}] {short(entry['file'], folder)}:{entry['line']} {entry['operation']}"
              for i, entry in enumerate(judged, 1)]
    rows = [["", *platforms]] + [
        [label, *(cell(entry["platforms"][platform]) for platform in platforms)]
        for label, entry in zip(labels, judged)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        lines.append("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
        if number == 0:
            lines.append("  ".join("-" * width for width in widths))
    cells = [text for row in rows[1:] for text in row[1:]]
    lines.append("\n" + "\n".join(meaning for word, meaning in _words
                                 if any(word in text for text in cells)))
    for label, entry in zip(labels, judged):
        lines += ["", f"{label}, in {entry['function']}"]
        if entry["source"]:
            lines.append(textwrap.indent(entry["source"], "    "))
        if entry["shapes"]:
            lines.append(f"    {_counted(entry['calls'], 'call')} by "
                         f"{_counted(entry['processes'], 'process')}: {entry['shape']}")
        lines += [f"    raised {error}" for error in entry["errors"]]
        lines += _site_text(entry, platforms)
    lines.append("")
    for platform in platforms:
        to_set, to_unset = environment(judged, platform)
        bad = [f"[{i}]" for i, entry in enumerate(judged, 1)
               if entry["shapes"] and not entry["platforms"][platform]["fits"]]
        lines.append(f"{platform} ({_platforms[platform]}): "
                     + (f"change {', '.join(bad)}" if bad else "takes every call that was checked"
                        if any(entry["errors"] for entry in judged) else "takes every call"))
        why = {}
        for entry in judged:
            why.update(entry["platforms"][platform]["why"])
        commands = [(f"export {name}={value}", name) for name, value in to_set.items()]
        commands += [(f"unset {name}", name) for name in to_unset]
        width = max((len(command) for command, _ in commands), default=0)
        lines += [f"    {command.ljust(width)}  # {why[name]}" for command, name in commands]
    return "\n".join(lines + [""])


def _counted(number, noun):
    """Returns a number with its noun, in the plural unless the number is 1."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def _site_text(entry, platforms):
    """Returns the findings of a site, each once with all platforms that have it."""
    by_text = {}
    for platform in platforms:
        for each in entry["platforms"][platform]["findings"]:
            heading = _headings[each["kind"]]
            if heading == "note":
                text = (heading, f"{each['what']} {each['advice']}", "")
            else:
                ignored = ", which is ignored there" if each["kind"] == "no_effect" else ""
                some = "" if each["shapes"] == entry["shapes"] else \
                    f" (in {each['shapes']} of {entry['shapes']} shapes)"
                text = (heading, f"{each['what']} is {each['given']}{ignored}; expected "
                                 f"{each['expected']}{some}", each["advice"])
            by_text.setdefault(text, []).append(platform)
    lines = []
    for names in dict.fromkeys(map(tuple, by_text.values())):
        lines.append(f"  {', '.join(names)}")
        for (heading, text, advice), where in by_text.items():
            if tuple(where) == names:
                lines.append(f"    {heading:6}  {text}")
                if advice:
                    lines.append(f"            fix: {advice}")
    return lines
