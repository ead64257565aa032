// SPDX-License-Identifier: MIT
// Reads the JSON that the benchmark programs write, and says which pictures and tables it fills.
"use strict";

const results = (() => {
  const own_transports = new Set(["ub", "loopback"]);

  /** Returns every object with a `config` that has times of dispatch and combine, at any depth. */
  function timed(value) {
    if (value === null || typeof value !== "object") return [];
    const here = value.config && value.dispatch_us?.p50 > 0 && value.combine_us?.p50 > 0;
    return [...(here ? [value] : []), ...Object.values(value).flatMap(timed)];
  }

  /** Returns whether another library's result has the payload of `base`, so that times compare. */
  function comparable(result, base) {
    const {config} = result;
    if (own_transports.has(config.transport)) return false;
    if (["hidden", "top_k", "experts", "codec"].some((name) => config[name] !== base[name])) return false;
    return !config.rows || (config.rows === "rank") === (base.layout === "rank_major");
  }

  function library({config}) {
    return (config.transport || "another library") + (config.rows ? `, a row per (token, ${config.rows})` : "");
  }

  /** Returns the limit of an operation in us, or the floor of copies alone that older results have. */
  function limit(result, operation) {
    const copies = result.floor?.[`all_ranks_${operation}_us`] ?? result.floor?.[`${operation}_us`];
    return result.limit?.[operation]?.us ?? copies;
  }

  /**
   * A sweep over `axis`, "tokens" or "ranks": the measured results in order, and for each other
   * library its comparable results.
   */
  function section(report, axis) {
    const base = report.config;
    const other = axis === "tokens" ? "ranks" : "tokens";
    const wanted = new Set(report.sweep[axis]);
    const belongs = ({config}) => config[other] === base[other] && wanted.has(config[axis]);
    const sorted = (list) => list.filter(belongs).sort((a, b) => a.config[axis] - b.config[axis]);
    const peers = timed(report.peers).filter((result) => comparable(result, base));
    return {
      axis,
      title: `Over ${axis}`,
      about: axis === "ranks" ? `${base.tokens} tokens a rank` : base.ranks === 1 ? "1 rank" : `${base.ranks} ranks`,
      points: sorted(report.results.filter((result) => !result.left_out)),
      others: [...d3.group(sorted(peers), library)],
    };
  }

  /** Joins runs of one configuration: the median of their medians, from the least p10 to the greatest p90. */
  function joined(runs) {
    const times = (name) => ({
      p10: d3.min(runs, (run) => run[name].p10),
      p50: d3.median(runs, (run) => run[name].p50),
      p90: d3.max(runs, (run) => run[name].p90),
    });
    const least = (operation) => d3.median(runs, (run) => limit(run, operation));
    return {
      ...runs[0],
      noise: runs.find(({noise}) => noise?.signs)?.noise,
      dispatch_us: times("dispatch_us"),
      combine_us: times("combine_us"),
      limit: {dispatch: {us: least("dispatch")}, combine: {us: least("combine")}},
    };
  }

  /**
   * A sweep over tokens, or over ranks if all runs have equally many tokens, from single runs of
   * ep_bench and of other libraries. Several runs of peerbus in one layout are joined; of another
   * library the fastest run of each size counts, whatever its settings were.
   */
  function sweep_of_runs(runs) {
    const own = runs.filter(({config}) => own_transports.has(config.transport));
    if (own.length === 0) throw new Error("no run of ep_bench in it, expected one for each size");
    const {config, machine} = own[0];
    const sizes = (axis) => new Set(own.map((run) => run.config[axis])).size;
    const [axis, other] = sizes("tokens") > 1 || sizes("ranks") === 1 ? ["tokens", "ranks"] : ["ranks", "tokens"];
    if (sizes(other) > 1) throw new Error("runs of ep_bench that differ in tokens and in ranks, expected one of them");
    const others = runs.filter((run) => comparable(run, config) && run.config[other] === config[other]);
    const by_size = (list, reduce) =>
      d3
        .rollups(list, reduce, (run) => run.config[axis])
        .map(([, result]) => result)
        .sort((a, b) => a.config[axis] - b.config[axis]);
    const fastest = (list) => d3.least(list, (run) => run.dispatch_us.p50 + run.combine_us.p50);
    return {
      kind: "latency",
      config,
      machine,
      axis,
      about: `${config[other]} ${other === "tokens" ? "tokens a rank" : "ranks"}`,
      layouts: d3.groups(own, (run) => run.config.layout).map(([name, list]) => [name, by_size(list, joined)]),
      others: d3
        .groups(others, (run) => run.config.transport)
        .map(([name, list]) => [`${name}, its fastest run`, by_size(list, fastest)]),
    };
  }

  /**
   * The operations of coll_bench in their order, each with its sizes. The time of a call is that out of place, where
   * there is such a call.
   */
  function collectives(data) {
    const rows = data.rows.map((row) => {
      const own = row.out_of_place ?? row.in_place;
      const mpi = row.out_of_place ? row.mpi_out_of_place : row.mpi_in_place;
      return {...own, ...row, mpi_us: mpi?.time_us};
    });
    return {
      kind: "collectives",
      ...data,
      rows,
      config: {transport: data.transport, ranks: data.ranks},
      operations: d3.groups(rows, ({operation}) => operation).map(([name, points]) => ({name, points})),
    };
  }

  /** The predictions of ep_predict over ranks and over tokens, a line for each number of the other. */
  function prediction(data) {
    const by = (axis) => d3.groups(data.results, ({config}) => config[axis]);
    const section = (axis, other, name) => {
      const lines = by(other).map(([size, list]) => [
        `${size} ${name}`,
        list.sort((a, b) => a.config[axis] - b.config[axis]),
      ]);
      return {
        axis,
        title: `Over ${axis}`,
        about: lines.length > 1 ? `over ${axis}` : lines[0][0],
        points: data.results,
        layouts: lines,
        others: [],
      };
    };
    const sections = [section("ranks", "tokens", "tokens a rank"), section("tokens", "ranks", "ranks")];
    // A line of one point says nothing that the other picture does not say.
    const drawn = sections.filter(({axis}) => by(axis).length > 1);
    return {kind: "prediction", ...data, sections: drawn.length ? drawn : [sections[0]]};
  }

  /**
   * Returns {kind, ...} of what a program wrote: "report" (ep_bench --report), "ablation"
   * (ep_bench --ablation), "collectives" (coll_bench), "prediction" (ep_predict), "ratios" (compare.sh), "times" (one run of any
   * program), "latency" (a list of such runs), or "over_steps" (a list of runs of ep_bench --balance).
   */
  function read(data) {
    if (Array.isArray(data) && data.every((row) => row.what && row.ratio)) return {kind: "ratios", rows: data};
    if (Array.isArray(data) && data.every((run) => run.over_steps)) return {kind: "over_steps", runs: data};
    if (Array.isArray(data)) return sweep_of_runs(timed(data));
    if (data.program === "ep_predict") return prediction(data);
    if (data.results)
      return {kind: "report", ...data, sections: ["tokens", "ranks"].map((axis) => section(data, axis))};
    if (data.steps) return {kind: "ablation", ...data};
    if (data.program === "coll_bench") return collectives(data);
    const times = Object.entries(data)
      .filter(([name, time]) => name.endsWith("_us") && time?.p50 > 0)
      .map(([name, time]) => ({name: name.slice(0, -3).replaceAll("_", " "), time}));
    if (times.length === 0 && !("dispatch_us" in data) && data.check?.passed !== false)
      throw new Error("no results in it, expected what a benchmark of peerbus wrote with --json");
    for (const operation of ["dispatch", "combine"]) {
      const bytes = data.bytes?.[operation];
      const least = limit(data, operation);
      const row = times.find(({name}) => name === operation);
      if (row) Object.assign(row, {bytes, limit: least});
    }
    return {kind: "times", ...data, times};
  }

  return {read, limit};
})();
