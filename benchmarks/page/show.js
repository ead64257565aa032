// SPDX-License-Identifier: MIT
// Fills the page with the results in the element "data", or asks for a file if there are none.
"use strict";

(() => {
  const page = document.querySelector("main");

  /** Creates an element. Attributes that are undefined are left out; children may be nested lists. */
  function element(name, attributes = {}, ...children) {
    const result = document.createElement(name);
    for (const [key, value] of Object.entries(attributes))
      if (key.startsWith("on")) result[key] = value;
      else if (value !== undefined) result.setAttribute(key, value);
    result.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== ""));
    return result;
  }

  const heading = (text) => element("h2", {}, text);
  const words = (rows) =>
    element(
      "table",
      {class: "words"},
      rows
        .filter(([, text]) => text)
        .map(([name, text]) => element("tr", {}, element("th", {}, name), element("td", {}, text))),
    );

  /** A table of numbers. `heads`: rows of cells, each a text, an element, or {text, columns}. */
  function table(heads, rows, style) {
    const head = ({text, columns}) => element("th", {colspan: columns}, text);
    const cells = (row, make) => element("tr", {}, row.map(make));
    return element(
      "div",
      {class: "scroll"},
      element(
        "table",
        {class: style},
        element(
          "thead",
          {},
          heads.map((row) => cells(row, (cell) => head(cell.columns ? cell : {text: cell}))),
        ),
        element(
          "tbody",
          {},
          rows.map((row) => cells(row, (cell) => element("td", {}, cell))),
        ),
      ),
    );
  }

  const count = (value) => value.toLocaleString("en");
  const {time, ratio} = charts;
  const rate = (bytes, spent) => time(bytes / spent.p50 / 1e3);

  /** Says which rank was slowest, and its median over the median of all ranks. */
  const slowest_rank = ({rank, p50_us, p50_us_of_all}) => `${rank} (${ratio(p50_us / p50_us_of_all)})`;

  /** Cells of one operation: its times, the limit, and what they say of the bytes. */
  function operation_cells(result, operation, libraries) {
    const spent = result[`${operation}_us`];
    const limit = results.limit(result, operation);
    const bytes = result.bytes[operation];
    return [
      time(spent.p10),
      element("b", {}, time(spent.p50)),
      time(spent.p90),
      time(limit),
      ratio(spent.p50 / limit),
      count(bytes),
      rate(bytes, spent),
      ...(result.slowest_rank ? [slowest_rank(result.slowest_rank[operation])] : []),
      ...libraries.map((other) => {
        const theirs = other?.[`${operation}_us`].p50;
        return theirs ? `${time(theirs)} (${(theirs / spent.p50).toFixed(1)})` : "";
      }),
    ];
  }

  function section_table({axis, points, others}) {
    if (points.length === 0) return [];
    const columns = [
      "p10",
      "p50",
      "p90",
      "limit",
      "ratio",
      "bytes a rank",
      "GB/s",
      ...(points[0].slowest_rank ? ["slowest rank (its p50 / that of all)"] : []),
      ...others.map(([name]) => `${name} (times slower)`),
    ];
    return table(
      [
        ["", "", ...["dispatch, µs", "combine, µs"].map((text) => ({text, columns: columns.length}))],
        [axis, "iterations", ...columns, ...columns],
      ],
      points.map((result) => {
        const libraries = others.map(([, list]) => list.find(({config}) => config[axis] === result.config[axis]));
        return [
          count(result.config[axis]),
          count(result.config.iters),
          ...["dispatch", "combine"].flatMap((operation) => operation_cells(result, operation, libraries)),
        ];
      }),
    );
  }

  /** Says how ranks were placed, such as "pinned with 1, 2 ranks; not pinned with 4 ranks". */
  function placements(points) {
    const sizes = d3.rollups(
      points,
      (list) => d3.sort(new Set(list.map(({config}) => config.ranks))),
      ({config}) => config.placement,
    );
    return sizes
      .map(([placement, ranks]) => `${placement} with ${ranks.join(", ")} rank${ranks.join() === "1" ? "" : "s"}`)
      .join("; ");
  }

  function machine_table({machine, config, results: points = []}, extra) {
    const ranks =
      {ub: "processes", verbs: "processes over RDMA", loopback: "threads"}[config?.transport] ?? config?.transport;
    const measured = points.filter(({left_out}) => !left_out);
    const placed = measured.length ? placements(measured) : config?.placement;
    return words([
      [
        "processor",
        machine &&
          `${machine.cpu}, ${machine.cores} cores` + (machine.usable_cores ? `, ${machine.usable_cores} usable` : ""),
      ],
      ["system", machine?.kernel],
      ["compiler", machine?.compiler],
      ["huge pages", machine?.huge_pages],
      ["row arithmetic", machine?.kernel_set],
      ["ranks", ranks && [ranks, placed].filter(Boolean).join(", ")],
      ...extra,
    ]);
  }

  /** Says in a sentence how long dispatch and combine take, and whether the machine was noisy. */
  function outcome(result) {
    if (!result) return [];
    const parts = ["dispatch", "combine"]
      .filter((operation) => result[`${operation}_us`])
      .map((operation) => {
        const spent = result[`${operation}_us`].p50;
        const limit = results.limit(result, operation);
        return `${operation} takes ${time(spent)} µs` + (limit ? `, ${ratio(spent / limit)} times its limit` : "");
      });
    const {ranks, tokens} = result.config;
    return [
      element("p", {}, element("b", {}, `${ranks} ranks with ${tokens} tokens each: ${parts.join("; ")}.`)),
      result.noise?.signs ? element("p", {class: "bad"}, `Noise: ${result.noise.signs}.`) : [],
    ];
  }

  /** Says in a sentence how long a call of the most bytes takes, and between which ratios to their floors others are. */
  function collective_outcome({ranks, rows, operations, noise}) {
    if (rows.length === 0) return [];
    const most = d3.greatest(rows, (row) => row.size);
    const last = operations
      .map(({points}) => points.at(-1))
      .filter(({size, ratio_to_floor}) => size > 0 && ratio_to_floor > 0); // A barrier has a floor of another kind.
    const took = `${most.operation}${most.size ? ` of ${charts.size(most.size)} bytes` : ""} takes ${time(most.time_us.p50)} µs`;
    const [least, worst] = [d3.least, d3.greatest].map((pick) => pick(last, (row) => row.ratio_to_floor));
    const said = (row) => `${ratio(row.ratio_to_floor)} (${row.operation})`;
    const beside =
      last.length === 0
        ? ""
        : last.length === 1
          ? `, ${ratio(least.ratio_to_floor)} times its floor`
          : `; of their largest sizes, operations take ${said(least)} to ${said(worst)} times their floor`;
    return [
      element("p", {}, element("b", {}, `${ranks === 1 ? "1 rank" : `${ranks} ranks`}: ${took}${beside}.`)),
      noise?.signs ? element("p", {class: "bad"}, `Noise: ${noise.signs}.`) : [],
    ];
  }

  /** Says how many of these results are of a noisy machine. */
  function noisy(points) {
    const found = points.filter(({noise}) => noise?.signs).length;
    return found && `${found} of ${points.length} results, whose points are hollow: other programs ran, or a p90 is over twice its p50`;
  }

  /** Returns the result of 128 tokens, or the last one. */
  const typical = (points) => points.find(({config}) => config.tokens === 128) ?? points.at(-1);

  const checked = (check) =>
    check && (check.passed ? check.what : element("span", {class: "bad"}, `FAILED: ${check.what}`));
  const formula = (result) => result?.bytes?.formula && `${result.bytes.formula}; GB/s of 10^9 bytes at p50`;

  /** Says what was measured, such as "hidden 7168, top-8 of 256 experts, int8, compact". */
  function payload(config) {
    if (!config?.hidden) return "";
    return [
      `hidden ${config.hidden}`,
      `top-${config.top_k} of ${config.experts} experts`,
      config.codec,
      config.layout === "rank_major" ? "rank-major" : config.layout,
      config.outputs === "home" && "outputs at home",
      config.lanes > 1 && `${config.lanes} lanes`,
      config.rows && `a row per (token, ${config.rows})`,
      config.routing && `routing ${config.routing}`,
    ]
      .filter(Boolean)
      .join(", ");
  }

  /** The words as a shell takes them. */
  const quoted = (command) =>
    command.map((word) => (/^[\w./:=,+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");

  const show = {
    report(view) {
      const left_out = view.results.filter((point) => point.left_out);
      const measured = view.results.find((point) => !point.left_out);
      const has_peers = view.sections.some(({others}) => others.length);
      return [
        element("p", {class: "faint"}, `${payload(view.config)}; peerbus ${view.peerbus}, ${view.time}`),
        outcome(typical(view.sections[0].points) ?? measured),
        machine_table(view, [
          ["noise", noisy(view.results)],
          ["bytes", formula(measured)],
          ["checked", checked(measured?.check)],
        ]),
        element(
          "p",
          {},
          "Solid: median time of the slowest rank, from a barrier that lets all ranks start together; the band " +
            "reaches from p10 to p90. Dashed, the limit of a perfect program: the median times of copying (dispatch; by " +
            "plain or by streaming stores, whichever is faster) or reading (combine) the same bytes to and from the same " +
            "places, of reading and encoding each token, and of a signal's way for each phase, all in turns with the " +
            `operations; ${view.config.between}. Where ranks share cores, the bytes are those of all ranks, copied by ` +
            "one rank per core." +
            (has_peers ? " Other libraries: medians of runs of their own, as given." : ""),
        ),
        view.sections.map((section) => [
          heading(section.title),
          element(
            "div",
            {class: "charts"},
            ["dispatch", "combine"].map((operation) => view.pictures.get(`${operation}_over_${section.axis}`)),
          ),
          section_table(section),
        ]),
        left_out.length
          ? [
              heading("Left out"),
              element(
                "ul",
                {},
                left_out.map(({config, left_out: why, failed}) =>
                  element(
                    "li",
                    {class: failed ? "bad" : undefined},
                    `${config.ranks} ranks, ${config.tokens} tokens: ${why}`,
                  ),
                ),
              ),
            ]
          : [],
        element("p", {}, "Made by ", element("code", {}, quoted(view.command))),
      ];
    },

    latency(view) {
      return [
        element("p", {class: "faint"}, `${payload(view.config)}; ${view.config.ranks} ranks`),
        outcome(typical(view.layouts[0][1])),
        machine_table(view, [
          ["noise", noisy(view.layouts.flatMap(([, list]) => list))],
          ["several runs", "ours: the median of their medians, with the least p10 and the greatest p90; others: the fastest"],
        ]),
        element("div", {class: "charts"}, [...view.pictures.values()]),
        section_table(view),
      ];
    },

    ablation(view) {
      const columns = ["p10", "p50", "p90"];
      return [
        element(
          "p",
          {class: "faint"},
          `${payload(view.config)}; ${view.config.ranks} ranks, ${view.config.tokens} tokens a rank, ${view.config.iters} rounds`,
        ),
        element(
          "p",
          {},
          element("b", {}, `The fused operation is ${ratio(view.steps.at(-1).times_faster_than_basic.sum)} times as fast as the basic flow.`),
        ),
        machine_table(view, [
          [
            "times",
            "of the slowest rank of each round, each from a barrier on; every round times all steps, " +
              "beginning with another one each time; the experts' work is kept out",
          ],
          ["checked", checked(view.check)],
        ]),
        element("div", {class: "charts"}, [...view.pictures.values()]),
        table(
          [
            [
              "",
              ...["dispatch, µs", "combine, µs", "sum, µs"].map((text) => ({text, columns: 3})),
              {text: "sum, times faster than", columns: 2},
            ],
            ["step", ...columns, ...columns, ...columns, "basic", "the step before"],
          ],
          view.steps.map((step, index) => [
            `${index} ${step.name}`,
            ...["dispatch_us", "combine_us", "sum_us"].flatMap((part) =>
              columns.map((key) => (key === "p50" ? element("b", {}, time(step[part][key])) : time(step[part][key]))),
            ),
            ratio(step.times_faster_than_basic.sum),
            ratio(step.times_faster_than_before.sum),
          ]),
          "named",
        ),
        heading("The steps"),
        words(view.steps.map(({name, what}) => [name, what])),
      ];
    },

    times(view) {
      const columns = ["min", "p10", "p50", "p90", "p99", "max"];
      const {config} = view;
      const size = config?.ranks && `${config.ranks} ranks, ${config.tokens} tokens a rank, ${config.iters} iterations`;
      return [
        element("p", {class: "faint"}, [payload(config), size].filter(Boolean).join("; ")),
        view.dispatch_us && config ? outcome(view) : [],
        machine_table(view, [
          [
            "signal",
            view.limit?.signal_one_way_ns && `${time(view.limit.signal_one_way_ns)} ns one way between ranks 0 and 1`,
          ],
          [
            "slowest rank",
            view.slowest_rank &&
              Object.entries(view.slowest_rank)
                .map(([operation, found]) => `${operation}: ${slowest_rank(found)}`)
                .join(", ") + "; its median / that of all ranks",
          ],
          ["limit", view.ratio?.of],
          ["bytes", formula(view)],
          ["checked", checked(view.check)],
        ]),
        element("div", {class: "charts"}, [...view.pictures.values()]),
        view.times.length === 0
          ? element("p", {}, "nothing was measured")
          : table(
              [["µs", ...columns, "limit", "ratio", "bytes a rank", "GB/s"]],
              view.times.map(({name, time: spent, limit, bytes}) => [
                name,
                ...columns.map((key) =>
                  spent[key] === undefined ? "" : key === "p50" ? element("b", {}, time(spent.p50)) : time(spent[key]),
                ),
                limit ? time(limit) : "",
                limit ? ratio(spent.p50 / limit) : "",
                bytes ? count(bytes) : "",
                bytes ? rate(bytes, spent) : "",
              ]),
              "named",
            ),
      ];
    },

    over_steps({runs, pictures}) {
      const [{config}] = runs;
      return [
        element("p", {class: "faint"}, `${payload(config)}; ${config.ranks} ranks, ${config.tokens} tokens a rank`),
        machine_table(runs[0], [["checked", checked(runs[0].check)]]),
        element("div", {class: "charts"}, [...pictures.values()]),
        table(
          [["balance", "after iterations", "places that changed", "balancedness before", "after"]],
          runs.flatMap(({config: {balance}, over_steps: {plans}}) =>
            plans.map(({step, moves, before, after}) => [balance, count(step), count(moves), before, after]),
          ),
          "named",
        ),
      ];
    },

    collectives(view) {
      const columns = ["operation", "size", "count", "algorithm", "p10, µs", "p50", "p90", "floor", "ratio", "algbw", "busbw", "wrong"];
      const has_mpi = Boolean(view.mpi);
      return [
        element(
          "p",
          {class: "faint"},
          `${view.type}, ${view.reduction}, operands in ${view.operands === "window" ? "a window" : "private memory"}` +
            (view.peerbus ? `; peerbus ${view.peerbus}, ${view.time}` : ""),
        ),
        collective_outcome(view),
        machine_table(view, [
          ["mpi", has_mpi && `${view.mpi}, in turns with peerbus`],
          ["noise", noisy(view.rows)],
          ["bytes", view.formula.bytes],
          ["floor", view.formula.floor],
          ["checked", checked(view.check)],
        ]),
        element(
          "p",
          {},
          `Solid: median over ${view.turns} turns of the time of a call, as the slowest rank has it from ${view.iterations} ` +
            "calls in a row; the band reaches from p10 to p90. Dashed: the floor.",
        ),
        element("div", {class: "charts"}, [...view.pictures.values()]),
        table(
          [[...columns, ...(has_mpi ? ["MPI, µs (times slower)"] : [])]],
          view.rows.map((row) => [
            row.operation,
            charts.size(row.size),
            count(row.count),
            row.algorithm,
            time(row.time_us.p10),
            element("b", {}, time(row.time_us.p50)),
            time(row.time_us.p90),
            row.floor_us > 0 ? time(row.floor_us) : "",
            row.floor_us > 0 ? ratio(row.ratio_to_floor) : "",
            row.algbw,
            row.busbw,
            count(row.wrong),
            ...(has_mpi ? [row.mpi_us ? `${time(row.mpi_us.p50)} (${ratio(row.times_mpi)})` : ""] : []),
          ]),
          "named",
        ),
        view.command ? element("p", {}, "Made by ", element("code", {}, quoted(view.command))) : [],
      ];
    },

    prediction(view) {
      const columns = ["median", "p10", "p90", "p99", "slowest"];
      const cells = ({p10, p50, p90, p99, slowest}) => [element("b", {}, time(p50)), ...[p10, p90, p99, slowest].map(time)];
      const percent = (share) => `${Math.round(share * 100)} %`;
      const size = ({config}) => `${count(config.ranks)} ranks, ${count(config.tokens)} tokens`;
      const bounded = view.results.filter(({bounds}) => bounds);
      return [
        element("p", {class: "faint"}, `${payload(view.config)}; peerbus ${view.peerbus}, ${view.time}`),
        words([
          ["platform", view.platform],
          ["engine", view.engine],
          ["relay", view.config.relay],
          ["sources", view.sources.map((source) => element("div", {}, source))],
        ]),
        element(
          "p",
          {},
          "Simulated times, measured on no machine. Lines: medians over ranks and " +
            `${view.config.rounds} rounds; the band reaches from p10 to p90. Slowest: the median over rounds of the slowest rank.`,
        ),
        view.sections.map((section) => [
          heading(section.title),
          element(
            "div",
            {class: "charts"},
            ["dispatch", "combine"].map((operation) => view.pictures.get(`${operation}_over_${section.axis}`)),
          ),
        ]),
        table(
          [
            ["", "", ...["dispatch, µs", "combine, µs"].map((text) => ({text, columns: columns.length})), {text: "a rank", columns: 3}],
            ["ranks", "tokens", ...columns, ...columns, "bytes", "messages", "window, MiB"],
          ],
          view.results.map((result) => [
            count(result.config.ranks),
            count(result.config.tokens),
            ...cells(result.dispatch_us),
            ...cells(result.combine_us),
            count(result.bytes),
            count(result.messages),
            (result.window_bytes / 2 ** 20).toFixed(1),
          ]),
        ),
        bounded.length
          ? [
              heading("What goes when a cost is zero"),
              table(
                [["dispatch, combine", ...bounded[0].bounds.map(({cost}) => cost)]],
                bounded.map((result) => [
                  size(result),
                  ...result.bounds.map(({dispatch, combine}) => `${percent(dispatch)}, ${percent(combine)}`),
                ]),
                "named",
              ),
            ]
          : [],
        view.results
          .filter(({advice}) => advice)
          .map((result) => [
            heading(`Advice: ${size(result)}`),
            element("ul", {}, result.advice.map((line) => element("li", {}, line))),
          ]),
        element("p", {}, "Made by ", element("code", {}, quoted(view.command))),
      ];
    },

    ratios(view) {
      return [
        element("div", {class: "charts"}, [...view.pictures.values()]),
        table(
          [["what", "ours", "theirs", "ratio", "least", "most", "rounds", "theirs by"]],
          view.rows.map((row) => [
            row.what,
            d3.format(",.2f")(row.ours),
            d3.format(",.2f")(row.theirs),
            element("b", {}, ratio(row.ratio.median)),
            ratio(row.ratio.min),
            ratio(row.ratio.max),
            count(row.rounds.length),
            row.theirs_by,
          ]),
          "named",
        ),
      ];
    },
  };
  const titles = {
    report: "dispatch and combine",
    latency: "dispatch and combine over tokens",
    ablation: "from a basic flow to the fused operation",
    times: "one run",
    over_steps: "experts where the load is",
    collectives: "collective operations",
    prediction: "predicted dispatch and combine",
    ratios: "beside other programs",
  };

  function open(text) {
    let title = "results of a benchmark";
    let content;
    try {
      const view = results.read(JSON.parse(text));
      view.pictures = charts.draw(view, true);
      content = show[view.kind](view);
      title = titles[view.kind];
    } catch (problem) {
      content = [element("p", {class: "bad"}, `This file cannot be shown: ${problem.message}`), chooser()];
    }
    document.title = `peerbus: ${title}`;
    page.replaceChildren(element("h1", {}, document.title), ...[content].flat(Infinity));
  }

  const chooser = () =>
    element(
      "p",
      {},
      "Results to show, one file or several, as benchmarks wrote them with ",
      element("code", {}, "--json"),
      ": ",
      element("input", {
        type: "file",
        accept: ".json",
        multiple: "",
        onchange: async ({target}) => {
          const texts = await Promise.all([...target.files].map((file) => file.text()));
          open(texts.length > 1 ? `[${texts}]` : texts[0]);
        },
      }),
    );

  document.head.append(element("style", {}, charts.style));
  const data = document.getElementById("data").textContent.trim();
  if (data) open(data);
  else page.replaceChildren(element("h1", {}, "peerbus: results of a benchmark"), chooser());
})();
