#include "report/page.h"

#include <fmt/format.h>

#include "base/file.h"
#include "dgc/error.h"
#include "dgc/version.h"
#include "report/assets.h"
#include "report/compare.h"
#include "report/format.h"
#include "report/page_data.h"
#include "report/sections.h"
#include "web/assets.h"

namespace dgc::report {
namespace {

constexpr std::string_view kCurves = R"(<section aria-labelledby="curves">
<h2 id="curves">Curves</h2>
<noscript><p class="notes">Curves are drawn by a script, and scripts are off in this browser. All tables
are here without.</p></noscript>
<div id="plots"></div>
</section>
)";

constexpr std::string_view kTerms = R"(<section aria-labelledby="terms" class="terms">
<h2 id="terms">What the words mean</h2>
<dl>
<dt>message ratio</dt><dd>4 bytes for each parameter, over the bytes of the whole message that a worker emits in
a step, headers and dense tensors included. The measure of the DGC paper.</dd>
<dt>traffic ratio</dt><dd>What a worker receives in a step of a dense fp32 ring all-reduce, over what it receives
with the exchange used. With an all-gather among N workers it is about 2/N of the message ratio: every
worker gets the messages of all others.</dd>
<dt>with warm-up</dt><dd>The ratio over all steps. In the first epochs more of the gradient is sent, so it is lower
than the ratio once warmed up.</dd>
<dt>share sent, sparsity</dt><dd>The share of the entries of sparse tensors that is sent in a step; sparsity is the rest.
What is not sent stays with the worker and adds up until it is large enough.</dd>
<dt>vs dense</dt><dd>Difference of the metric to the dense run with the same seed, in the metric’s unit.</dd>
<dt>waiting</dt><dd>Time from the end of backward until the gradients of all are there, as a share of the training
time: for slower workers, for the network, and for what is left of compressing and adding up.</dd>
<dt>time</dt><dd>Training time, without evaluation and checkpoints.</dd>
<dt>sent per step</dt><dd>Bytes that worker 0 sends in a step after warm-up, to all others together.</dd>
<dt>dense, dgc, naive</dt><dd>dense sends every gradient whole; dgc the largest entries of what has accumulated, with the
paper’s corrections; naive the same without the corrections.</dd>
<dt>diloco, dgc-local</dt><dd>Each worker trains by itself for some steps; then all exchange what changed: diloco whole, with
an outer momentum, dgc-local its largest entries. The message ratio is that of an exchange, the traffic ratio compares with
dense gradients in every step.</dd>
</dl>
</section>
)";

std::string title_of(std::span<const Run> runs) {
  return runs.size() == 1 ? runs[0].name + " – dgc report"
                          : fmt::format("{} runs – dgc report", runs.size());
}

}  // namespace

std::string terms_section() { return std::string(kTerms); }

std::string report_page(std::span<const Run> runs) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
      escape(title_of(runs)) + "</title>\n<style>\n";
  html += web::asset::base_css;
  html += asset::page_css;
  html += "</style>\n</head>\n<body>\n<main>\n";
  html += header_section(runs);
  html += results_section(runs);
  html += kCurves;
  html += time_section(runs);
  html += tensors_section(runs);
  html += configuration_section(runs);
  html += terms_section();
  html += "</main>\n<footer>dgc " DGC_VERSION "</footer>\n";
  html += "<script type=\"application/json\" id=\"data\">" + page_data(runs) + "</script>\n";
  for (const std::string_view script : {web::asset::chart_js, asset::page_js}) {
    html += "<script>\n";
    html += script;
    html += "</script>\n";
  }
  return html + "</body>\n</html>\n";
}

void write_report(std::span<const Run> runs, const std::filesystem::path& html) {
  if (runs.empty()) {
    throw Error(ErrorCode::invalid_argument, "write report", html.string(), "there are no runs");
  }
  const std::string page = report_page(runs);
  AtomicFile file(html);
  file.write(std::as_bytes(std::span(page)));
  file.commit();
}

}  // namespace dgc::report
