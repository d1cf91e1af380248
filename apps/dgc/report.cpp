// dgc report: what came out of training runs, as a table and as a page.
#include "report/page.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "process/terminal.h"
#include "report/compare.h"

namespace dgc::app {
namespace {

namespace fs = std::filesystem;

void print_json(const std::vector<report::Run>& runs, const fs::path& html) {
  auto all = nlohmann::ordered_json::array();
  for (const report::Run& run : runs) {
    all.push_back({{"run", run.name},
                   {"folder", run.folder.string()},
                   {"summary", run.summary_file},
                   {"notes", run.notes},
                   {"report", html.string()}});
  }
  fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_tables(const std::vector<report::Run>& runs, const fs::path& html) {
  const auto names = report::run_names(runs);
  fmt::print("{}\n", process::table(report::comparison_rows(runs)));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string prefix = runs.size() > 1 ? names[i] + ": " : "";
    for (const std::string& sentence : report::comparison_sentences(runs[i])) {
      fmt::print("{}{}\n", prefix, sentence);
    }
    for (const std::string& note : runs[i].notes) fmt::print("{}note: {}\n", prefix, note);
  }
  fmt::print("report: {}\n", html.string());
}

void run(const std::vector<std::string>& folders, const std::string& out, bool as_json) {
  std::vector<report::Run> runs;
  for (const std::string& folder : folders) runs.push_back(report::read_run(folder));
  fs::path html = out;
  if (out.empty()) html = runs.size() == 1 ? runs[0].folder / "report.html" : "report.html";
  report::write_report(runs, html);
  as_json ? print_json(runs, html) : print_tables(runs, html);
}

}  // namespace

void add_report(CLI::App& app) {
  auto* command = app.add_subcommand("report", "Compare training runs, as a table and as a page");
  command->footer(
      "The page is one file that needs no network. Runs that were killed or are still running are\n"
      "shown as far as they got.\n\nExample:\n"
      "  dgc report runs/fashion                     writes runs/fashion/report.html\n"
      "  dgc report runs/a runs/b --out compared.html\n"
      "  dgc report runs/fashion --json");
  auto folders = std::make_shared<std::vector<std::string>>();
  auto out = std::make_shared<std::string>();
  auto as_json = std::make_shared<bool>(false);
  command->add_option("RUN", *folders, "Folders that dgc train wrote")->required();
  command->add_option(
      "--out", *out, "The page to write (default: RUN/report.html, of several runs ./report.html)");
  command->add_flag("--json", *as_json, "Print the runs' summaries as JSON");
  command->callback([folders, out, as_json] { run(*folders, *out, *as_json); });
}

}  // namespace dgc::app
