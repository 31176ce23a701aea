"use strict";
(function () {
  var root = document.documentElement;
  function each(selector, action, from) {
    Array.prototype.forEach.call((from || document).querySelectorAll(selector), action);
  }
  each(".js", function (part) { part.hidden = false; });

  // Scheme: the system's, light, dark.
  each("[name=scheme]", function (box) {
    box.addEventListener("change", function () {
      if (box.value === "auto") { root.removeAttribute("data-theme"); } else { root.setAttribute("data-theme", box.value); }
    });
  });

  // Filters: rows of the ranking and points of the charts carry the same data attributes.
  var form = document.getElementById("filters");
  function chosen(name) {
    var values = {};
    each("[name=" + name + "]", function (box) { values[box.value] = box.checked; }, form);
    return values;
  }
  function filter() {
    var verdicts = chosen("verdict"), gpus = chosen("gpu"), models = chosen("model");
    var tied = form.querySelector("[name=tied]").checked;
    var most = Number(form.querySelector("[name=most]").value);
    var shown = 0, total = 0;
    each("[data-verdict]", function (part) {
      var d = part.dataset;
      var keep = verdicts[d.verdict] !== false && gpus[d.gpu] !== false && models[d.model] !== false &&
        (!tied || d.tied === "yes") && !(Number(d.gpus) > most);
      if (part.tagName.toLowerCase() === "tr") { part.hidden = !keep; total += 1; shown += keep ? 1 : 0; }
      else { part.style.display = keep ? "" : "none"; }
    });
    each("tr.group", function (row) {
      row.hidden = !row.parentNode.querySelector("tr[data-verdict]:not([hidden])");
    });
    form.querySelector("output").textContent = shown + " of " + total + " rows shown";
  }
  if (form) {
    form.addEventListener("input", filter);
    form.addEventListener("reset", function () { window.setTimeout(filter, 0); });
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    filter();
  }

  // A point under the pointer or the keyboard says what it is, below its chart.
  each("svg.chart", function (chart) {
    var line = document.createElement("p");
    line.className = "readout";
    line.setAttribute("aria-hidden", "true");
    line.textContent = "\u00a0";
    var marks = chart.querySelectorAll("g.mark, circle.dot");
    if (!marks.length) { return; }
    chart.parentNode.insertBefore(line, chart.nextSibling);
    Array.prototype.forEach.call(marks, function (mark) {
      function say() { line.textContent = mark.getAttribute("aria-label") || mark.querySelector("title").textContent; }
      function still() { line.textContent = "\u00a0"; }
      mark.addEventListener("pointerenter", say);
      mark.addEventListener("focus", say);
      mark.addEventListener("pointerleave", still);
      mark.addEventListener("blur", still);
    });
  });

  // Figures to save, for tickets.
  function resolved(text) {
    var style = getComputedStyle(root);
    return text.replace(/var\((--[a-z0-9-]+)\)/g, function (all, name) { return style.getPropertyValue(name).trim(); });
  }
  function standalone(chart) {
    var box = chart.viewBox.baseVal, copy = chart.cloneNode(true);
    copy.setAttribute("xmlns", "http" + "://www.w3.org/2000/svg");
    copy.setAttribute("width", 2 * box.width);
    copy.setAttribute("height", 2 * box.height);
    var style = document.createElementNS(chart.namespaceURI, "style");
    style.textContent = resolved(document.getElementById("figure-style").textContent) +
      resolved("svg{background:var(--bg);font-family:sans-serif}");
    copy.insertBefore(style, copy.firstChild);
    return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
  }
  function save(blob, name) {
    var link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    window.setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
  }
  function png(chart, name) {
    var image = new Image(), box = chart.viewBox.baseVal, url = URL.createObjectURL(standalone(chart));
    image.onload = function () {
      var canvas = document.createElement("canvas");
      canvas.width = 2 * box.width;
      canvas.height = 2 * box.height;
      var draw = canvas.getContext("2d");
      draw.fillStyle = getComputedStyle(root).getPropertyValue("--bg").trim();
      draw.fillRect(0, 0, canvas.width, canvas.height);
      draw.drawImage(image, 0, 0);
      URL.revokeObjectURL(url);
      canvas.toBlob(function (blob) { save(blob, name); });
    };
    image.src = url;
  }
  each("figure", function (figure) {
    var chart = figure.querySelector("svg.chart");
    if (!chart) { return; }
    var title = chart.querySelector("title").textContent, bar = document.createElement("p");
    bar.className = "save";
    ["SVG", "PNG"].forEach(function (kind) {
      var button = document.createElement("button");
      button.type = "button";
      button.textContent = kind;
      button.setAttribute("aria-label", "Save as " + kind + ": " + title);
      button.addEventListener("click", function () {
        var name = chart.id + "." + kind.toLowerCase();
        if (kind === "SVG") { save(standalone(chart), name); } else { png(chart, name); }
      });
      bar.appendChild(button);
    });
    figure.appendChild(bar);
  });

  // Paper shows what is folded away.
  window.addEventListener("beforeprint", function () { each("details:not(.bulk)", function (d) { d.open = true; }); });
})();
