// SPDX-License-Identifier: MIT
// Draws benchmark results as SVG. The page and draw.mjs load it after d3, Plot and results.js.
"use strict";

const charts = (() => {
  /** The colours of the page and of all pictures, for light and dark. */
  const style = `
    :root { color-scheme: light dark; --page: #fff; --text: #222; --faint: #5c5c5c; --grid: #8885; --shade: #8882;
      --series-0: #1f5fa8; --series-1: #d9731a; --series-2: #2f8f4e; --series-3: #a8326e; --series-4: #7a5ac2; }
    @media (prefers-color-scheme: dark) { :root { --page: #16191d; --text: #e6e6e6; --faint: #a5a9ae;
      --series-0: #6cb2ff; --series-1: #ff9f57; --series-2: #63d089; --series-3: #f287bb; --series-4: #b9a3ff; } }
    svg { background: var(--page); color: var(--text); --plot-background: var(--page); }`;

  const colour = (index) => `var(--series-${index % 5})`;
  const faint = "var(--faint)";

  /** Formats microseconds with at least three digits. */
  const time = (value) => d3.format(value < 10 ? ".2f" : value < 100 ? ".1f" : ",.0f")(value);
  const ratio = (value) => d3.format(value < 10 ? ".2f" : ".1f")(value);
  const number = (value) => (Math.abs(value) < 1 ? String(+value.toPrecision(3)) : d3.format(",")(value));

  /** A place in pixels from the top left corner of the picture, whatever panels it has. */
  const at = (frame, x, y) => ({
    facet: "super",
    frameAnchor: "top-left",
    lineAnchor: "middle",
    dx: x - frame.marginLeft,
    dy: y - frame.marginTop,
  });

  /** A picture of some size with a title. `entries`: {name, colour, dashes} of the legend. */
  function picture(title, frame, entries, {marks, ...options}) {
    const line = {
      draw: (context) => {
        context.moveTo(-13, 0);
        context.lineTo(13, 0);
      },
    };
    return Plot.plot({
      ...frame,
      style: {fontFamily: "Helvetica, Arial, sans-serif", fontSize: 12},
      ariaLabel: title,
      ...options,
      marks: [
        marks,
        Plot.text([title], {...at(frame, 8, 16), fontSize: 15, fontWeight: "bold", textAnchor: "start"}),
        entries.map(({name, colour: stroke, dashes, x = 10, y}) => [
          Plot.dot([0], {...at(frame, x + 13, y), symbol: line, stroke, strokeWidth: 2.4, strokeDasharray: dashes}),
          Plot.text([name], {...at(frame, x + 34, y), textAnchor: "start"}),
        ]),
      ],
    });
  }

  /** Says what was measured, and where. */
  const payload = ({hidden, top_k, experts}, {cpu, cores}) =>
    `hidden ${hidden}, top-${top_k} of ${experts} experts; ${cpu}, ${cores} cores`;

  const stacked = (entries) => entries.map((entry, index) => ({...entry, y: 38 + 18 * index}));

  /** Returns those of the sorted `values` whose labels do not touch on a logarithmic axis. */
  function spaced(values, domain, pixels, label = number) {
    const scale = d3.scaleLog(domain, [0, pixels]);
    let free_from = -Infinity;
    return values.filter((value) => {
      const half = 3.6 * label(value).length + 3;
      if (scale(value) - half < free_from) return false;
      free_from = scale(value) + half;
      return true;
    });
  }

  /** The axis below a picture. Give it `text`: with `tickFormat`, Plot leaves out labels of a logarithmic axis. */
  const below = (options) => Plot.axisX({labelAnchor: "center", labelArrow: "none", ...options});

  /** Returns 1, 2 and 5 times powers of ten within a range; powers alone where there are many. */
  function decades([low, high]) {
    const factors = high / low < 2000 ? [1, 2, 5] : [1];
    return d3
      .range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1)
      .flatMap((power) => factors.map((factor) => +`${factor}e${power}`))
      .filter((value) => value >= low && value <= high);
  }

  /** Formats a number of bytes, such as 24, 64K or 1.5M. */
  function size(bytes) {
    const power = Math.max(["", "K", "M", "G"].findLastIndex((_, index) => bytes >= 1024 ** index), 0);
    return +(bytes / 1024 ** power).toPrecision(4) + ["", "K", "M", "G"][power];
  }

  /** What lies along an axis: its label, how its numbers are written, and how one of them is said. */
  const axes = {
    tokens: {label: "tokens a rank", tick: number, say: (x) => `${number(x)} tokens a rank`},
    ranks: {label: "ranks", tick: number, say: (x) => `${number(x)} ranks`},
    bytes: {label: "bytes of the larger operand (1K = 1024)", tick: size, say: (x) => `${size(x)} bytes`},
  };

  /** The lines of a sweep: {name, colour, dashes, values: [{x, y, low, high}]}. */
  function lines_of({axis, points, layouts = [["", points]], others}, operation) {
    const value = (result) => ({x: result.config[axis], y: result[`${operation}_us`].p50});
    const own = (list) =>
      list.map((result) => ({
        ...value(result),
        low: result[`${operation}_us`].p10,
        high: result[`${operation}_us`].p90,
        noise: result.noise?.signs,
      }));
    const least = layouts[0][1].map((result) => ({...value(result), y: results.limit(result, operation)}));
    const name = (layout) => (layouts.length > 1 ? `peerbus, ${layout}` : "peerbus") + ", median and p10 to p90";
    return [
      ...layouts.map(([layout, list], index) => ({name: name(layout), colour: colour(index), values: own(list)})),
      {name: "limit: copying, encoding, signals", colour: faint, dashes: "6 4", values: least.filter(({y}) => y > 0)},
      ...others.map(([name, list], index) => ({
        name,
        colour: colour(index + layouts.length),
        values: list.map(value),
      })),
    ].filter(({values}) => values.length > 0);
  }

  /** Returns the range of the vertical axis that shows all values with their spreads. */
  const heights = (values) => [
    d3.min(values, ({y, low = y}) => low) / 1.25,
    d3.max(values, ({y, high = y}) => high) * 1.25,
  ];

  /**
   * The marks of lines: the spread as a band, the line, and its points, which are hollow where the machine was
   * noisy. `panel`: where each value belongs.
   */
  function curves(lines, axis, tip, panel = {}) {
    const hint =
      ({name}) =>
      ({x, y, low, high, noise}) =>
        `${name}\n${axes[axis].say(x)}: ${time(y)} µs` +
        (high === undefined ? "" : ` (${time(low)} to ${time(high)})`) +
        (noise ? `\n${noise}` : "");
    const dots = (line, is_noisy, style) =>
      Plot.dot(
        line.values.filter(({noise}) => Boolean(noise) === is_noisy),
        {...panel, x: "x", y: "y", r: line.dashes && line.values.length > 1 ? 2 : 3.2, ...style, title: hint(line), tip},
      );
    return [
      lines.map(({values, colour: fill}) =>
        values[0].high === undefined
          ? null
          : values.length > 1
            ? Plot.areaY(values, {...panel, x: "x", y1: "low", y2: "high", fill, fillOpacity: 0.18})
            : Plot.ruleX(values, {...panel, x: "x", y1: "low", y2: "high", stroke: fill, strokeWidth: 2}),
      ),
      lines.map((line) =>
        Plot.lineY(line.values, {
          ...panel,
          x: "x",
          y: "y",
          stroke: line.colour,
          strokeWidth: line.dashes ? 1.6 : 2.2,
          strokeDasharray: line.dashes,
        }),
      ),
      lines.map((line) => dots(line, false, {fill: line.colour})),
      lines.map((line) => dots(line, true, {fill: "var(--page)", stroke: line.colour})),
    ];
  }

  /** Times over an axis, both logarithmic. `cores`: a grey area shows where more ranks share them. */
  function over(title, lines, axis, tip, cores = Infinity) {
    const marginTop = 52 + 18 * Math.max(lines.length, 1);
    const frame = {
      width: 620,
      height: lines.length === 0 ? 150 : marginTop + 334,
      marginTop,
      marginLeft: 62,
      marginRight: 20,
      marginBottom: 44,
    };
    if (lines.length === 0)
      return picture(title, frame, [], {
        x: {axis: null},
        y: {axis: null},
        marks: [Plot.text(["nothing was measured"], {frameAnchor: "middle", fontSize: 13, fill: faint})],
      });

    const values = lines.flatMap((line) => line.values);
    const xs = d3.sort(new Set(values.map(({x}) => x)));
    const margin = Math.max((xs.at(-1) / xs[0]) ** 0.04, 1.1);
    const domain = [xs[0] / margin, xs.at(-1) * margin];
    const range = heights(values);
    const crowded = xs.findIndex((x) => x > cores);
    const edge = crowded > 0 ? Math.sqrt(xs[crowded - 1] * xs[crowded]) : domain[0];
    return picture(title, frame, stacked(lines), {
      x: {type: "log", domain},
      y: {type: "log", domain: range},
      marks: [
        crowded < 0
          ? null
          : [
              Plot.rect([0], {x1: edge, x2: domain[1], y1: range[0], y2: range[1], fill: "var(--shade)"}),
              Plot.text(["more ranks than cores"], {frameAnchor: "bottom-right", dx: -6, dy: -6, fill: faint}),
            ],
        Plot.gridY(decades(range), {stroke: "var(--grid)", strokeOpacity: 1}),
        Plot.axisY({ticks: decades(range), text: number, tickSize: 0, label: null}),
        Plot.text(["µs"], {...at(frame, frame.marginLeft - 6, marginTop - 10), textAnchor: "end"}),
        below({
          ticks: spaced(xs, domain, frame.width - frame.marginLeft - frame.marginRight, axes[axis].tick),
          text: axes[axis].tick,
          label: axes[axis].label,
        }),
        Plot.ruleY([range[0]], {stroke: faint}),
        curves(lines, axis, tip),
      ],
    });
  }

  /** Times of one operation over tokens or ranks, beside the limit and other libraries. */
  function sweep(section, operation, tip) {
    const {axis, points} = section;
    const title = `${operation === "dispatch" ? "Dispatch" : "Combine"}, ${section.about}`;
    const cores = axis === "ranks" ? d3.max(points, ({machine}) => machine?.usable_cores) : undefined;
    return over(title, lines_of(section, operation), axis, tip, cores);
  }

  /** Times of a collective operation over bytes, beside the floor and MPI. */
  function collective({config}, {name, points}, tip) {
    const values = (time_of) =>
      points
        .filter((row) => row.size > 0 && time_of(row)?.p50 > 0)
        .map((row) => ({x: row.size, y: time_of(row).p50, low: time_of(row).p10, high: time_of(row).p90}));
    const own = values(({time_us}) => time_us).map((value) => ({
      ...value,
      noise: points.find((row) => row.size === value.x).noise?.signs,
    }));
    const floor = points.filter(({size: bytes, floor_us}) => bytes > 0 && floor_us > 0);
    const lines = [
      {name: "peerbus, median and p10 to p90 of the turns", colour: colour(0), values: own},
      {name: "floor: copying as many bytes", colour: faint, dashes: "6 4", values: floor.map((row) => ({x: row.size, y: row.floor_us}))},
      {name: "MPI", colour: colour(1), values: values(({mpi_us}) => mpi_us)},
    ].filter(({values: some}) => some.length > 0);
    return over(`${name}, ${config.ranks === 1 ? "1 rank" : `${config.ranks} ranks`}`, lines, "bytes", tip);
  }

  /** Dispatch and combine over tokens or ranks, side by side on equal scales, beside the limit and other libraries. */
  function latency(view, tip) {
    const gap = 0.08;
    const panels = ["dispatch", "combine"].map((operation) =>
      lines_of(view, operation).map((line) => ({
        ...line,
        values: line.values.map((value) => ({...value, operation})),
      })),
    );
    const rows = Math.ceil(panels[0].length / 3);
    const frame = {
      width: 860,
      height: 452 + 18 * rows,
      marginTop: 74 + 18 * rows,
      marginLeft: 62,
      marginRight: 16,
      marginBottom: 70,
    };
    const lines = panels.flat();
    const values = lines.flatMap((line) => line.values);
    const xs = d3.sort(new Set(values.map(({x}) => x)));
    const domain = [xs[0] / 1.25, xs.at(-1) * 1.25];
    const range = heights(values);
    const pixels = ((frame.width - frame.marginLeft - frame.marginRight) * (1 - gap)) / 2;
    const legend = panels[0].map((line, index) => ({...line, x: 10 + 285 * (index % 3), y: 42 + 18 * Math.floor(index / 3)}));
    return picture(`Dispatch and combine, ${view.about}`, frame, legend, {
      x: {type: "log", domain},
      y: {type: "log", domain: range},
      fx: {domain: ["dispatch", "combine"], padding: gap},
      marks: [
        Plot.gridY(decades(range), {stroke: "var(--grid)", strokeOpacity: 1}),
        Plot.axisY({ticks: decades(range), text: number, tickSize: 0, label: null}),
        Plot.text(["µs"], {...at(frame, frame.marginLeft - 6, frame.marginTop - 12), textAnchor: "end"}),
        Plot.axisFx({label: null, fontSize: 13, fontWeight: "bold"}),
        below({ticks: spaced(xs, domain, pixels), text: number, label: axes[view.axis].label, labelOffset: 36}),
        Plot.ruleY([range[0]], {stroke: faint}),
        curves(lines, view.axis, tip, {fx: "operation"}),
        Plot.text([`${view.axis === "tokens" ? `${view.config.placement} ranks, ` : ""}${view.config.codec}, ${payload(view.config, view.machine)}`], {
          ...at(frame, 8, frame.height - 14),
          textAnchor: "start",
          fill: faint,
        }),
      ],
    });
  }

  /** The time of each step of an ablation, dispatch and combine as one bar, and the ratios beside it. */
  function ablation({steps, config, machine}, tip) {
    const title = "From a basic MoE flow to one fused operation";
    const frame = {
      width: 860,
      height: 176 + 46 * steps.length,
      marginTop: 100,
      marginLeft: 190,
      marginRight: 230,
      marginBottom: 76,
    };
    const parts = steps.flatMap(({name, dispatch_us, combine_us}) => [
      {name, part: "dispatch", from: 0, to: dispatch_us.p50},
      {name, part: "combine", from: dispatch_us.p50, to: dispatch_us.p50 + combine_us.p50},
    ]);
    const spread = ({sum_us, dispatch_us, combine_us}) => Math.max(sum_us.p90, dispatch_us.p50 + combine_us.p50);
    const beside = (pixels, heading, text, options) => [
      Plot.text([heading], {...at(frame, frame.width - pixels, 82), textAnchor: "middle", ...options}),
      Plot.text(steps, {
        y: "name",
        frameAnchor: "right",
        dx: 230 - pixels,
        fontSize: 13,
        text,
        textAnchor: "middle",
        ...options,
      }),
    ];
    const size = `${config.ranks} ranks, ${config.placement}, ${config.tokens} tokens a rank`;
    return picture(
      title,
      frame,
      [
        {name: "dispatch", colour: colour(0), x: 190, y: 64},
        {name: "combine", colour: colour(1), x: 290, y: 64},
        {name: "p10 to p90 of the sum", colour: "currentColor", x: 390, y: 64},
      ],
      {
        x: {domain: [0, 1.05 * d3.max(steps, spread)], nice: true},  // Room for the number beside a bar.
        y: {type: "band", domain: steps.map(({name}) => name), padding: 0.4},
        marks: [
          Plot.gridX({stroke: "var(--grid)", strokeOpacity: 1, ticks: 5}),
          below({ticks: 5, text: number, tickSize: 0, label: "µs, median of the slowest rank", labelOffset: 36}),
          Plot.axisY({tickSize: 0, fontSize: 13, label: null}),
          Plot.barX(parts, {
            y: "name",
            x1: "from",
            x2: "to",
            tip,
            fill: ({part}) => colour(part === "dispatch" ? 0 : 1),
            title: ({name, part, from, to}) => `${name}\n${part}: ${time(to - from)} µs`,
          }),
          Plot.ruleY(steps, {
            y: "name",
            x1: ({sum_us}) => sum_us.p10,
            x2: ({sum_us}) => sum_us.p90,
            strokeWidth: 1.5,
            marker: "tick",
          }),
          Plot.text(steps, {
            y: "name",
            x: spread,
            dx: 9,
            textAnchor: "start",
            fontSize: 13,
            fontWeight: "bold",
            text: ({sum_us}) => time(sum_us.p50),
          }),
          Plot.text(["times faster than"], {
            ...at(frame, frame.width - 110, 62),
            textAnchor: "middle",
            fontWeight: "bold",
          }),
          beside(160, "basic", (step) => ratio(step.times_faster_than_basic.sum) + "×", {fontWeight: "bold"}),
          beside(60, "the step before", (step) => ratio(step.times_faster_than_before.sum) + "×"),
          Plot.text([`${size}, ${payload(config, machine)}`], {
            ...at(frame, 8, frame.height - 14),
            textAnchor: "start",
            fill: faint,
          }),
        ],
      },
    );
  }

  /**
   * Rows of {name, thin: [low, high], thick: [low, high], middle, limit, hint} on one logarithmic axis.
   * `least` is a range that the axis has at least.
   */
  function ranges(title, label, legend, rows, {left, format, least = [], marks = [], tip}) {
    const frame = {
      width: 860,
      height: 112 + 34 * rows.length,
      marginTop: 64,
      marginLeft: left,
      marginRight: 70,
      marginBottom: 44,
    };
    const ends = d3.extent([...rows.flatMap(({thin, limit}) => [...thin, limit]), ...least]);
    const domain = [ends[0] / 1.1, ends[1] * 1.1];
    const ticks = spaced(decades(domain), domain, frame.width - frame.marginLeft - frame.marginRight);
    const [main, second] = [colour(0), colour(1)];
    return picture(title, frame, legend, {
      x: {type: "log", domain},
      y: {type: "band", domain: rows.map(({name}) => name)},
      marks: [
        Plot.gridX(ticks, {stroke: "var(--grid)", strokeOpacity: 1}),
        below({ticks, text: number, tickSize: 0, label}),
        Plot.axisY({tickSize: 0, label: null, lineWidth: 30, textOverflow: "ellipsis"}),
        marks,
        Plot.ruleY(rows, {y: "name", x1: ({thin}) => thin[0], x2: ({thin}) => thin[1], stroke: main}),
        Plot.ruleY(rows, {
          y: "name",
          x1: ({thick}) => thick[0],
          x2: ({thick}) => thick[1],
          stroke: main,
          strokeWidth: 7,
          strokeOpacity: 0.4,
        }),
        Plot.tickX(
          rows.filter(({limit}) => limit),
          {y: "name", x: "limit", stroke: second, strokeWidth: 2.4, inset: 6},
        ),
        Plot.dot(rows, {y: "name", x: "middle", r: 4.5, fill: main, title: "hint", tip}),
        Plot.text(rows, {
          y: "name",
          x: ({thin}) => thin[1],
          dx: 9,
          textAnchor: "start",
          fontWeight: "bold",
          text: ({middle}) => format(middle),
        }),
      ],
    });
  }

  /** The spread of every time of one run. */
  function times(view, tip) {
    const rows = view.times.map(({name, limit, time: all}) => ({
      name,
      limit,
      thin: [all.min ?? all.p10, all.max ?? all.p99],
      thick: [all.p10 ?? all.p50, all.p90],
      middle: all.p50,
      hint: [name, ...Object.entries(all).map(([key, value]) => `${key} ${time(value)} µs`)].join("\n"),
    }));
    const legend = [{name: "least to most, p10 to p90 and median", colour: colour(0), y: 40}];
    if (rows.some(({limit}) => limit)) legend.push({name: `limit: ${view.ratio.of}`, colour: colour(1), x: 290, y: 40});
    const left = 24 + 7 * d3.max(rows, ({name}) => name.length);
    return ranges("Time of the slowest rank", "µs", legend, rows, {left, format: time, tip});
  }

  /** Ratios of compare.sh: the median and the range of the rounds; right of 1 ours is faster. */
  function ratios(view, tip) {
    const rows = view.rows.map(({what, ours, theirs, theirs_by, ratio: {median, min, max}}) => ({
      name: what,
      thin: [min, max],
      thick: [min, max],
      middle: median,
      hint: `${what}\nours ${number(ours)}, theirs ${number(theirs)} (${theirs_by})`,
    }));
    const legend = [{name: "median and range of the rounds", colour: colour(0), y: 40}];
    const marks = [Plot.ruleX([1], {stroke: faint, strokeWidth: 1.6})];
    return ranges("Times faster than the other program", "theirs / ours", legend, rows, {
      left: 390,
      format: ratio,
      least: [0.8, 1.25],
      marks,
      tip,
    });
  }

  /** The times of runs and their balancedness over iterations, side by side. Each has an axis of its own. */
  function over_steps({runs}, tip) {
    const panels = ["dispatch, experts and combine, µs: p25 to p75", "balancedness"];
    const lines = runs.map(({config, over_steps: {sum_us, balancedness}}, index) => {
      const parts = d3.range(0, sum_us.length, config.replan_after).map((from) => {
        const part = (values) => d3.sort(values.slice(from, from + config.replan_after));
        const [times, equal] = [part(sum_us), part(balancedness)];
        return {x: from + times.length / 2, times, equal: d3.median(equal)};
      });
      return {name: config.balance, colour: colour(index), parts};
    });
    const top = 1.05 * d3.max(lines, ({parts}) => d3.max(parts, ({times}) => d3.quantileSorted(times, 0.75)));
    const marginTop = 92 + 18 * lines.length;
    const frame = {width: 860, height: marginTop + 330, marginTop, marginLeft: 62, marginRight: 16, marginBottom: 70};
    const steps = d3.max(runs, (run) => run.over_steps.sum_us.length);
    const ticks = [d3.ticks(0, top, 6).map((value) => ({value, y: value / top})), d3.range(0, 1.1, 0.2).map((y) => ({value: y, y}))];
    const {config, machine} = runs[0];
    const drawn = lines.flatMap(({name, colour: stroke, parts}) => {
      const at_panel = (panel, value) => parts.map((part) => ({x: part.x, panel: panels[panel], name, ...value(part)}));
      const times = at_panel(0, (part) => {
        const [low, y, high] = [0.25, 0.5, 0.75].map((p) => d3.quantileSorted(part.times, p) / top);
        return {low, y, high, text: `${time(y * top)} µs (${time(low * top)} to ${time(high * top)})`};
      });
      const equal = at_panel(1, (part) => ({y: part.equal, text: d3.format(".3f")(part.equal)}));
      const values = [...times, ...equal];
      return [
        Plot.areaY(times, {fx: "panel", x: "x", y1: "low", y2: "high", fill: stroke, fillOpacity: 0.18}),
        Plot.lineY(values, {fx: "panel", x: "x", y: "y", z: "panel", stroke, strokeWidth: 2.2}),
        Plot.dot(values, {
          ...{fx: "panel", x: "x", y: "y", r: 3.2, fill: stroke, tip},
          title: ({name: of, x, text}) => `${of}\niteration ${number(x)}: ${text}`,
        }),
      ];
    });
    return picture("Where experts lie, over iterations", frame, stacked(lines), {
      x: {domain: [0, steps]},
      y: {domain: [0, 1.03], axis: null},
      fx: {domain: panels, padding: 0.12},
      marks: [
        ticks.map((of, panel) => [
          Plot.ruleY(of, {fx: () => panels[panel], y: "y", stroke: "var(--grid)"}),
          Plot.text(of, {fx: () => panels[panel], y: "y", frameAnchor: "left", dx: -8, textAnchor: "end", text: ({value}) => number(value)}),
        ]),
        Plot.axisFx({label: null, fontSize: 13, fontWeight: "bold"}),
        below({ticks: 6, text: number, label: "iteration", labelOffset: 36}),
        Plot.ruleY([0], {stroke: faint}),
        drawn,
        Plot.text([`${config.ranks} ranks, ${config.tokens} tokens a rank, routing ${config.routing}, ${config.row_us} µs a row, ${payload(config, machine)}`], {
          ...at(frame, 8, frame.height - 14),
          textAnchor: "start",
          fill: faint,
        }),
      ],
    });
  }

  /** Returns the pictures of what `results.read` returned, by name. `tip`: show figures under the pointer. */
  function draw(view, tip = false) {
    if (view.sections)
      return new Map(
        view.sections.flatMap((section) =>
          ["dispatch", "combine"].map((operation) => [
            `${operation}_over_${section.axis}`,
            sweep(section, operation, tip),
          ]),
        ),
      );
    if (view.kind === "collectives")
      return new Map(
        view.operations
          .filter(({points}) => points.some(({size: bytes}) => bytes > 0)) // A barrier moves no bytes.
          .map((operation) => [`${operation.name}_over_bytes`, collective(view, operation, tip)]),
      );
    const rows = {
      ablation: view.steps,
      latency: view.layouts,
      times: view.times,
      ratios: view.rows,
      over_steps: view.runs,
    }[view.kind];
    if (rows.length === 0) return new Map();
    const pictures = new Map([[view.kind, {ablation, latency, times, ratios, over_steps}[view.kind](view, tip)]]);
    if (view.kind === "times" && view.over_steps) pictures.set("over_steps", over_steps({runs: [view]}, tip));
    return pictures;
  }

  return {style, time, ratio, size, draw};
})();
