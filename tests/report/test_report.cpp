// The report of training runs: what is read from a run's folder, how it is compared, and the page.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "dgc/error.h"
#include "report/compare.h"
#include "report/curve.h"
#include "report/format.h"
#include "report/page.h"
#include "report/page_data.h"
#include "train/metrics_log.h"

namespace dgc::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using train::read_metrics;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Report : public testing::Test {
 protected:
  using Run = report::Run;  // testing::Test has a function of that name
  Report() { fs::create_directories(folder_); }
  ~Report() override { fs::remove_all(folder_); }

  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  std::string read(const fs::path& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static json mode(double metric, double ratio, double total) {
    return {{"metric", metric},
            {"epochs", 4},
            {"seconds", 80.0},
            {"bytes_up_per_step", 3100},
            {"message_ratio", ratio},
            {"message_ratio_total", total},
            {"traffic_ratio", ratio / 2},
            {"time", {{"waiting", 5.0}, {"compute", 70.0}}},
            {"finished", true}};
  }
  static json summary() {
    return {{"metric_name", "top-1 accuracy"},
            {"metric_unit", "%"},
            {"higher_is_better", true},
            {"finished", true},
            {"modes", {{"dgc", mode(91.08, 533.4, 41.0)}, {"dense", mode(91.20, 1.0, 1.0)}}}};
  }
  static std::string step(int number, const std::string& loss) {
    return "{\"type\":\"step\",\"step\":" + std::to_string(number) +
           ",\"epoch\":0.5,\"loss\":" + loss + ",\"bytes_up\":" + std::to_string(100 * number) +
           ",\"message_ratio\":7.5}\n";
  }
  /// A run with everything, of the modes dense and dgc.
  Run whole(const std::string& name) const {
    write(name + "/config.json", R"({"lr":0.05,"seed":1,"data":"x"})");
    write(name + "/summary.json", summary().dump());
    for (const char* each : {"dense", "dgc"}) {
      write(name + "/" + each + "/metrics.jsonl", step(1, "2.5") + step(2, "2.0"));
      write(
          name + "/" + each + "/tensors.json",
          R"([{"name":"w","shape":[4,2],"elements":8,"mode":"sparse","why":"","k":1,"bytes":20}])");
    }
    return read_run(folder_ / name);
  }
  Error error_of(const fs::path& name) const {
    try {
      read_run(folder_ / name);
    } catch (const Error& error) {
      return error;
    }
    return {ErrorCode::ok, "", "", ""};
  }

  fs::path folder_ = fs::path(testing::TempDir()) / ("report" + std::to_string(::getpid()));
};

TEST_F(Report, reads_a_whole_run) {
  const Run run = whole("fashion");
  EXPECT_EQ(run.name, "fashion");
  EXPECT_TRUE(run.summary.finished);
  EXPECT_TRUE(run.notes.empty()) << run.notes[0];
  ASSERT_EQ(run.modes.size(), 2u);
  EXPECT_EQ(run.modes[0].name, "dense");
  EXPECT_EQ(run.dense(), &run.modes[0]);
  const Mode& dgc = run.modes[1];
  EXPECT_EQ(dgc.result.message_ratio, 533.4);
  EXPECT_EQ(dgc.result.waiting_share, 5.0 / 80.0);
  EXPECT_TRUE(std::isnan(dgc.result.best_metric));
  ASSERT_EQ(dgc.steps.size(), 2u);
  EXPECT_EQ(dgc.steps[1].loss, 2.0);
  EXPECT_EQ(dgc.tensors.at(0).shape, (std::vector<std::int64_t>{4, 2}));
  EXPECT_EQ(dgc.tensors[0].bytes, 20.0);
  EXPECT_EQ(read_run((folder_ / "fashion").string() + "/").name, "fashion");
}

// tests/golden/run-0.1 is what `dgc train` of version 0.1 left of a run of six steps, but for its
// checkpoints and its page.
TEST_F(Report, reads_a_run_of_version_0_1) {
  const Run run = read_run(fs::path(DGC_GOLDEN_DIR) / "run-0.1");
  EXPECT_TRUE(run.notes.empty()) << run.notes[0];
  EXPECT_EQ(run.summary.dgc_version, "0.1.0");
  EXPECT_TRUE(run.summary.finished);
  EXPECT_EQ(run.summary.facts.workers, 2.0);
  EXPECT_EQ(run.summary.facts.parameters, 224'714.0);
  EXPECT_EQ(run.config["recipe"], "synthetic");
  ASSERT_EQ(run.modes.size(), 2u);
  const Mode& dgc = run.modes[1];
  EXPECT_EQ(dgc.result.bytes_up_per_step, 1604.0);
  EXPECT_EQ(dgc.result.message_ratio, 574.3488817891374);
  EXPECT_EQ(dgc.result.message_ratio_total, 29.191692512544048);
  EXPECT_NEAR(dgc.result.time->total(), dgc.result.total_seconds, 1e-9);
  EXPECT_EQ(dgc.result.parameters_hash, "706485610e64c661");
  ASSERT_EQ(dgc.steps.size(), 3u);
  EXPECT_EQ(dgc.steps[2].bytes_up, 184'983.0);
  EXPECT_EQ(dgc.steps[0].time.waiting, 0.006652511);
  ASSERT_EQ(dgc.evaluations.size(), 3u);
  EXPECT_EQ(dgc.evaluations[0].metrics.at(1).second, 50.0);
  EXPECT_EQ(dgc.tensors.size(), 10u);
  for (const Mode& mode : run.modes) {
    const train::Result& result = mode.result;
    for (const double known : {result.metric,
                               result.validation_metric,
                               result.best_metric,
                               result.loss,
                               result.epochs,
                               result.steps,
                               result.seconds,
                               result.total_seconds,
                               result.bytes_up_per_step,
                               result.bytes_down_per_step,
                               result.message_bytes_per_step,
                               result.wire_bytes_total,
                               result.message_ratio,
                               result.traffic_ratio,
                               result.message_ratio_total,
                               result.traffic_ratio_total,
                               result.final_ratio,
                               result.steps_at_final_ratio,
                               result.data_share,
                               result.waiting_share,
                               result.skipped_files}) {
      EXPECT_TRUE(std::isfinite(known)) << mode.name;
    }
  }
  const auto data = json::parse(page_data(std::span(&run, 1)));
  for (const auto& series : data["series"]) {
    for (const auto& [name, curve] : series["curves"].items())
      EXPECT_FALSE(curve.is_null()) << name;
    EXPECT_EQ(series["metrics"].size(), 2u);
  }
  // A run of which only result.json tells that it is finished.
  fs::copy(fs::path(DGC_GOLDEN_DIR) / "run-0.1", folder_ / "old", fs::copy_options::recursive);
  fs::remove(folder_ / "old" / "summary.json");
  const Run without = read_run(folder_ / "old");
  EXPECT_EQ(without.modes[1].result.message_ratio, 574.3488817891374);
  EXPECT_EQ(without.summary.facts.metric_name, "top-1 accuracy");
}

TEST_F(Report, a_cut_off_line_is_left_out) {
  const std::string lines = step(1, "2.5") + step(2, "2.0") + step(3, "1.5");
  for (std::size_t cut = 0; cut < lines.size(); ++cut) {
    write("m.jsonl", lines.substr(0, cut));
    const train::Metrics metrics = read_metrics(folder_ / "m.jsonl");
    const std::size_t complete = cut * 3 / lines.size();
    // Without its line end an object is whole all the same.
    EXPECT_GE(metrics.steps.size(), complete) << cut;
    EXPECT_LE(metrics.steps.size(), complete + 1) << cut;
    EXPECT_EQ(metrics.bad_lines, 0u) << cut;
  }
  write("m.jsonl", step(1, "2.5") + "{\"type\":\"st\n" + "[1]\n\n" + step(2, "2.0"));
  const train::Metrics metrics = read_metrics(folder_ / "m.jsonl");
  EXPECT_EQ(metrics.steps.size(), 2u);
  EXPECT_EQ(metrics.bad_lines, 2u);
  EXPECT_EQ(metrics.first_bad, 2u);
  EXPECT_FALSE(metrics.cut_off);
}

TEST_F(Report, lines_of_a_resumed_run_replace_those_after_the_checkpoint) {
  write("m.jsonl", step(1, "3") + step(2, "2") + step(3, "9") + step(2, "2.1") + step(3, "1"));
  const auto steps = read_metrics(folder_ / "m.jsonl").steps;
  EXPECT_EQ(column(steps, &train::StepLine::step), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(column(steps, &train::StepLine::loss), (std::vector<double>{3, 2.1, 1}));
}

TEST_F(Report, values_that_are_absent_or_not_finite_are_gaps) {
  write("m.jsonl", step(1, "2.5") + step(2, "null") +
                       "{\"type\":\"step\",\"step\":3,\"time\":{\"data\":0.5}}\n" +
                       "{\"type\":\"evaluation\",\"step\":3,\"metrics\":{\"top-5\":99}}\n");
  const train::Metrics metrics = read_metrics(folder_ / "m.jsonl");
  const auto loss = column(metrics.steps, &train::StepLine::loss);
  ASSERT_EQ(loss.size(), 3u);
  EXPECT_TRUE(std::isnan(loss[1]) && std::isnan(loss[2]));
  EXPECT_EQ(last(metrics.steps, &train::StepLine::loss), 2.5);
  EXPECT_EQ(metrics.steps[2].time.data, 0.5);
  EXPECT_EQ(metrics.evaluations.at(0).metrics.at(0), std::pair(std::string("top-5"), 99.0));
  EXPECT_TRUE(column(metrics.steps, &train::StepLine::lr).empty());
  EXPECT_TRUE(std::isnan(last(metrics.steps, &train::StepLine::lr)));
}

TEST_F(Report, an_unfinished_run_shows_what_there_is) {
  write("run/config.json", "{}");
  write("run/dgc/metrics.jsonl",
        step(10, "2.5") + step(20, "2.0") +
            "{\"type\":\"evaluation\",\"step\":20,\"metric\":70,\"loss\":0.7}\n"
            "{\"type\":\"evaluation\",\"step\":30,\"metric\":65,\"loss\":0.8}\n{\"type\":");
  write("run/checkpoints/step-1/manifest.json", "{}");  // no mode
  const Run run = read_run(folder_ / "run");
  EXPECT_FALSE(run.summary.finished);
  ASSERT_EQ(run.modes.size(), 1u);
  const train::Result& result = run.modes[0].result;
  EXPECT_EQ(result.metric, 65.0);
  EXPECT_EQ(result.best_metric, 70.0);
  EXPECT_EQ(result.message_ratio, 7.5);
  EXPECT_EQ(result.bytes_up_per_step, 100.0);
  EXPECT_FALSE(result.finished);
  ASSERT_EQ(run.notes.size(), 2u);
  EXPECT_NE(run.notes[0].find("summary.json is missing"), std::string::npos);
  EXPECT_NE(run.notes[1].find("dgc/tensors.json is missing"), std::string::npos);
  EXPECT_EQ(
      comparison_words(run),
      "not finished: dgc sent 7.50 times smaller messages than plain fp32 gradients, and is at "
      "metric 65.00.");
  EXPECT_NE(report_page(std::span(&run, 1)).find("summary.json is missing"), std::string::npos);
}

TEST_F(Report, a_run_that_went_on_is_shown_as_it_is_now) {
  whole("run");
  json stopped = summary();
  stopped["finished"] = false;
  for (auto& each : stopped["modes"]) {
    each["finished"] = false;
    each["steps"] = 1;
  }
  write("run/summary.json", stopped.dump());
  // Dense has ended since; dgc is at its second step.
  json dense = mode(93.0, 1.0, 1.0);
  dense["steps"] = 2;
  write("run/dense/result.json", json{{"result", dense}, {"common", json::object()}}.dump());
  const Run run = read_run(folder_ / "run");
  ASSERT_EQ(run.modes.size(), 2u);
  EXPECT_EQ(run.modes[0].result.metric, 93.0);
  EXPECT_TRUE(run.modes[0].result.finished);
  EXPECT_EQ(run.modes[1].result.steps, 2.0);
  EXPECT_EQ(run.modes[1].result.message_ratio, 7.5);
  EXPECT_FALSE(run.modes[1].result.finished);
}

TEST_F(Report, each_missing_file_is_named) {
  for (const std::string name :
       {"config.json", "summary.json", "dgc/metrics.jsonl", "dgc/tensors.json"}) {
    whole("run");
    fs::remove(folder_ / "run" / name);
    const Run run = read_run(folder_ / "run");
    ASSERT_EQ(run.notes.size(), 1u) << name;
    EXPECT_EQ(run.notes[0].find(name + " is missing"), 0u) << run.notes[0];
    EXPECT_GT(report_page(std::span(&run, 1)).size(), 10'000u);
  }
  whole("run");
  fs::remove_all(folder_ / "run" / "dgc");
  EXPECT_NE(read_run(folder_ / "run").notes.at(0).find("dgc: its folder is missing"),
            std::string::npos);
}

TEST_F(Report, errors_name_the_file) {
  fs::create_directories(folder_ / "empty");
  EXPECT_EQ(error_of("empty").code(), ErrorCode::io);
  EXPECT_EQ(error_of("empty").subject(), (folder_ / "empty").string());
  EXPECT_EQ(error_of("none").problem(), "does not exist");
  write("file", "x");
  EXPECT_EQ(error_of("file").problem(), "is not a folder");
  write("a/summary.json", "{\"modes\":");
  EXPECT_EQ(error_of("a").code(), ErrorCode::truncated);
  EXPECT_EQ(error_of("a").subject(), (folder_ / "a" / "summary.json").string());
  write("a/summary.json", "{\"modes\":}");
  EXPECT_EQ(error_of("a").code(), ErrorCode::bad_state);
  write("a/summary.json", "[]");
  EXPECT_EQ(error_of("a").problem(), "holds array where an object is expected");
  write("b/dgc/tensors.json", "[1]");
  EXPECT_EQ(error_of("b").problem(), "entry 0 is not an object");
  // Wrong types inside are unknown values, not errors.
  write(
      "c/summary.json",
      R"({"metric_name":7,"machine":3,"seed":{},"modes":{"dgc":{"metric":"x","time":[]},"x":1}})");
  write("c/dgc/tensors.json", R"([{"shape":"x","elements":"y"}])");
  const Run run = read_run(folder_ / "c");
  EXPECT_TRUE(std::isnan(run.modes.at(0).result.metric));
  EXPECT_GT(report_page(std::span(&run, 1)).size(), 10'000u);
  EXPECT_THROW(write_report({}, folder_ / "x.html"), Error);
  EXPECT_THROW(write_report(std::span(&run, 1), folder_ / "no" / "x.html"), Error);
}

TEST_F(Report, compares_modes) {
  const Run run = whole("run");
  const auto rows = comparison_rows(run);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0], (std::vector<std::string>{"mode", "top-1 accuracy, %", "vs dense", "epochs",
                                               "time", "waiting", "sent per step", "message ratio",
                                               "with warm-up", "traffic ratio"}));
  EXPECT_EQ(rows[1], (std::vector<std::string>{"dense", "91.20", "-", "4", "80.0 s", "6.2 %",
                                               "3.1 kB", "1.00", "1.00", "0.50"}));
  EXPECT_EQ(rows[2], (std::vector<std::string>{"dgc", "91.08", "-0.12", "4", "80.0 s", "6.2 %",
                                               "3.1 kB", "533", "41.0", "267"}));
  EXPECT_EQ(
      comparison_words(run),
      "dgc sent 533 times smaller messages than dense once warmed up (41.0 times over the whole "
      "run), and ended 0.12 points below dense.");
}

TEST_F(Report, a_dense_mode_has_no_sparse_tensors) {
  // Version 0.1 wrote what could have been sparse.
  const Run run = read_run(fs::path(DGC_GOLDEN_DIR) / "run-0.1");
  ASSERT_EQ(run.modes[0].tensors[0].mode, "sparse");
  const std::string page = report_page(std::span(&run, 1));
  const std::size_t dense = page.find("all 10 tensors are sent whole");
  const std::size_t dgc = page.find("5 of 10 tensors sparse, 99.9&nbsp;% of the parameters");
  ASSERT_NE(dense, std::string::npos);
  ASSERT_NE(dgc, std::string::npos);
  EXPECT_EQ(page.substr(dense, dgc - dense).find(">sparse<"), std::string::npos);
  EXPECT_NE(page.find(">sparse<", dgc), std::string::npos);
}

TEST_F(Report, the_version_of_libtorch_is_named_where_it_is_known) {
  Run run = whole("run");
  const auto named = [&] {
    return report_page(std::span(&run, 1)).find("libtorch 2.13.0") != std::string::npos;
  };
  EXPECT_FALSE(named());
  run.summary.facts.libtorch = "2.13.0";
  EXPECT_TRUE(named());
  EXPECT_EQ(train::summary_from(train::to_json(run.summary)).facts.libtorch, "2.13.0");
}

TEST_F(Report, both_times_and_both_ratios_are_named) {
  Run run = whole("run");
  run.modes[1].result.time = train::Times{.compute = 90.0, .waiting = 3.9, .evaluate = 1.5};
  const std::string page = report_page(std::span(&run, 1));
  EXPECT_NE(page.find("93.9 s training, 95.4 s with evaluation and checkpoints"),
            std::string::npos);
  EXPECT_NE(page.find("<p class=\"value\">41.0<span>× whole run</span></p>"
                      "<p class=\"value\">533<span>× after warm-up</span></p>"),
            std::string::npos);
  EXPECT_NE(page.find("<b>waiting</b> begins when"), std::string::npos);
}

TEST_F(Report, words_fit_the_metric) {
  Run run = whole("run");
  run.summary.facts.metric_name = "perplexity";
  run.summary.facts.metric_unit = "";
  run.summary.facts.higher_is_better = false;
  run.modes[0].result.metric = 131.5;
  run.modes[1].result.metric = 136.4;
  EXPECT_NE(comparison_words(run).find(
                "and ended at perplexity 136.40, 4.90 above dense (lower is better)."),
            std::string::npos);
  run.modes[1].result.metric = 131.501;
  EXPECT_NE(comparison_words(run).find("131.50, level with dense."), std::string::npos);
  run.modes[1].result.metric = kNan;
  EXPECT_NE(comparison_words(run).find("and has not been evaluated."), std::string::npos);

  // A few steps over an emulated link are about their time.
  Run slow = run;
  slow.config = {{"emulate-link", "100Mbps,20ms"}};
  for (Mode& mode : slow.modes) {
    mode.result.steps = 40;
    mode.result.epochs = 0.04;
    mode.result.time = train::Times{.compute = mode.name == "dense" ? 8.0 : 1.6};
  }
  const std::string words = comparison_words(slow);
  EXPECT_TRUE(
      words.starts_with("Over an emulated link of 100Mbps,20ms a step took 200 ms with "
                        "dense, 40 ms with "))
      << words;
  EXPECT_EQ(words.find("evaluated"), std::string::npos) << words;
  EXPECT_EQ(comparison_rows(run)[2][2], "-");
  run.modes.pop_back();
  EXPECT_EQ(comparison_words(run), "dense ended at perplexity 131.50 after 4 epochs.");
}

TEST_F(Report, compares_runs) {
  std::vector<Run> runs = {whole("a/same"), whole("b/same"), whole("other")};
  runs[1].modes.erase(runs[1].modes.begin());  // compared with the first dense there is
  runs[1].config["lr"] = 0.1;
  runs[2].config["extra"] = "yes";
  EXPECT_EQ(run_names(runs), (std::vector<std::string>{"a/same", "b/same", "other"}));
  const auto rows = comparison_rows(runs);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0][0], "run");
  EXPECT_EQ(rows[3][0], "b/same");
  EXPECT_EQ(rows[3][3], "-0.12");
  std::vector<Run> strangers = runs;
  strangers[1].config["seed"] = 7;
  EXPECT_EQ(comparison_rows(strangers)[3][3], "-") << "dense of another seed is no baseline";
  const auto differences = configuration_differences(runs);
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[1], (std::vector<std::string>{"extra", "-", "-", "yes"}));
  EXPECT_EQ(differences[2], (std::vector<std::string>{"lr", "0.05", "0.1", "0.05"}));
  const std::vector<Run> twice = {runs[0], runs[0]};
  const auto names = run_names(twice);
  EXPECT_NE(names[0], names[1]);
  EXPECT_EQ(configuration_differences(twice).size(), 1u);
}

TEST_F(Report, thinning_keeps_what_one_would_see) {
  std::vector<double> values(100'000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<double>(i) / 5000.0);
  values[31'415] = 50.0;
  values[77'777] = -50.0;
  values[60'000] = kNan;
  const auto kept = thin(values, kMostPoints);
  EXPECT_LE(kept.size(), kMostPoints);
  EXPECT_GT(kept.size(), kMostPoints / 2);
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
  const std::set<std::size_t> set(kept.begin(), kept.end());
  EXPECT_EQ(set.size(), kept.size());
  for (const std::size_t i : {0, 31'415, 60'000, 77'777, 99'999}) EXPECT_TRUE(set.contains(i)) << i;
  const std::vector<double> short_one = {3, 1, 2};
  EXPECT_EQ(thin(short_one, 8), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_TRUE(thin({}, 8).empty());
  EXPECT_LE(thin(std::vector<double>(1000, kNan), 8).size(), 8u);
  EXPECT_LE(thin(std::vector<double>(1000, 1.0), 8).size(), 8u);
}

TEST_F(Report, smoothing_is_a_mean_that_keeps_gaps) {
  std::vector<double> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(i) + (i % 2 == 0 ? 5 : -5);
  values[500] = kNan;
  const auto means = smooth(values);
  EXPECT_TRUE(std::isnan(means[500]));
  for (const std::size_t i : {100, 300, 495, 700})
    EXPECT_NEAR(means[i], static_cast<double>(i), 1.0);
  EXPECT_EQ(means[0], values[0]);
  EXPECT_EQ(means[999], values[999]);
  EXPECT_EQ(smooth(std::vector<double>{1, 9, 1}), (std::vector<double>{1, 9, 1}));
}

TEST_F(Report, long_curves_are_thinned_on_the_page) {
  Run run = whole("run");
  std::string lines;
  for (int i = 1; i <= 5000; ++i) lines += step(i, i == 2222 ? "77.125" : "1.5");
  write("run/dgc/metrics.jsonl", lines);
  run = read_run(folder_ / "run");
  const auto data = json::parse(page_data(std::span(&run, 1)));
  const auto& loss = data["series"][1]["curves"]["loss"];
  EXPECT_LE(loss["y"].size(), kMostPoints);
  EXPECT_EQ(loss["y"].size(), loss["step"].size());
  EXPECT_EQ(loss["y"].size(), loss["bytes"].size());
  EXPECT_NE(std::find(loss["y"].begin(), loss["y"].end(), 77.125), loss["y"].end());
  EXPECT_TRUE(data["series"][1]["curves"]["share"].is_null());
  EXPECT_FALSE(loss.contains("time"));  // these lines have no seconds
}

TEST_F(Report, local_steps_are_drawn_against_tokens_bytes_received_and_a_link) {
  const auto line = [](int step) {
    return fmt::format(
        R"({{"type":"step","step":{},"seconds":{},"loss":2.5,"bytes_up":{},"bytes_down":{}}})"
        "\n",
        step, step * 0.5, 100 * step, 300 * step);
  };
  json both = summary();
  both["examples_per_step"] = 1024;
  both["example_name"] = "tokens";
  both["metric_name"] = "bits per byte";
  both["metric_unit"] = "";
  both["higher_is_better"] = false;
  both["modes"] = {{"dense", mode(2.0, 1.0, 1.0)}, {"dgc-local", mode(2.014, 214.0, 214.0)}};
  both["modes"]["dgc-local"]["traffic_ratio_total"] = 3200.0;
  write("run/summary.json", both.dump());
  for (const char* each : {"dense", "dgc-local"}) {
    write(std::string("run/") + each + "/metrics.jsonl", line(15) + line(30));
  }
  write("run/config.json", R"({"link":"20Mbps,25ms","local-steps":15})");
  Run run = read_run(folder_ / "run");
  json data = json::parse(page_data(std::span(&run, 1)));
  EXPECT_EQ(data["examples"], "tokens");
  EXPECT_EQ(data["local"], true);
  EXPECT_EQ(data["link"], "20 Mbps, 25 ms");
  EXPECT_EQ(data["emulated"], "");
  const json& local = data["series"][1]["curves"]["loss"];
  EXPECT_EQ(local["examples"], json({15360, 30720}));
  EXPECT_EQ(local["received"], json({4500, 9000}));
  // 9,000 bytes at 2.5 MB/s, and a delay for each of two rounds.
  EXPECT_NEAR(local["link"][1].get<double>(), 15.0 + 9000 / 2.5e6 + 2 * 0.025, 1e-4);
  // A dense exchange takes two delays, in every step.
  EXPECT_NEAR(data["series"][0]["curves"]["loss"]["link"][1].get<double>(),
              15.0 + 9000 / 2.5e6 + 30 * 2 * 0.025, 1e-4);
  EXPECT_EQ(comparison_words(run),
            "dgc-local received 3,200 times fewer bytes than dense gradients in every step, and "
            "ended at bits per byte 2.01, 0.014 above dense (lower is better).");
  // What a run was made over is no longer computed.
  write("run/config.json", R"({"emulate-link":"20Mbps,25ms","link":"1Gbps,1ms","local-steps":15})");
  run = read_run(folder_ / "run");
  data = json::parse(page_data(std::span(&run, 1)));
  EXPECT_EQ(data["emulated"], "20 Mbps, 25 ms");
  EXPECT_FALSE(data["series"][1]["curves"]["loss"].contains("link"));
}

TEST_F(Report, a_step_that_sends_everything_has_share_1) {
  write("run/dgc/metrics.jsonl",
        "{\"type\":\"step\",\"step\":1,\"ratio\":1,\"achieved_ratio\":0.46}\n"
        "{\"type\":\"step\",\"step\":2,\"ratio\":0.001,\"achieved_ratio\":0.0011}\n");
  const Run run = read_run(folder_ / "run");
  const auto data = json::parse(page_data(std::span(&run, 1)));
  EXPECT_EQ(data["series"][0]["curves"]["share"]["y"], (json{1.0, 0.0011}));
}

TEST_F(Report, text_from_files_stays_text) {
  const std::string nasty = "</script><script>alert(1)</script>&\"'";
  whole("run");
  write("run/config.json", json{{nasty, nasty}}.dump());
  json about = summary();
  about["metric_name"] = nasty;
  about["recipe"] = nasty;
  about["modes"][nasty] = mode(1, 2, 3);
  write("run/summary.json", about.dump());
  write("run/dgc/tensors.json", json{{{"name", nasty}, {"mode", nasty}, {"why", nasty}}}.dump());
  fs::rename(folder_ / "run", folder_ / "<b>\xff");
  const Run run = read_run(folder_ / "<b>\xff");
  write_report(std::span(&run, 1), folder_ / "page.html");
  const std::string page = read("page.html");
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_NE(page.find("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;"),
            std::string::npos);
  EXPECT_NE(page.find("&lt;b&gt;\xef\xbf\xbd"), std::string::npos);
  EXPECT_EQ(page.find('\xff'), std::string::npos);
  const std::string data = page_data(std::span(&run, 1));
  EXPECT_EQ(data.find('<'), std::string::npos);
  EXPECT_EQ(json::parse(data)["metric"], nasty);
}

TEST_F(Report, the_page_asks_for_nothing) {
  const Run run = whole("run");
  const std::string page = report_page(std::span(&run, 1));
  for (const char* reference : {"src=", "url(", "@import", "fetch(", "<link"}) {
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  }
  std::size_t addresses = 0;
  for (std::size_t at = page.find("://"); at != std::string::npos; at = page.find("://", at + 1)) {
    ++addresses;
  }
  EXPECT_EQ(addresses, 1u);  // the name space of SVG
}

TEST(Format, numbers_as_people_read_them) {
  EXPECT_EQ(bytes_text(3100), "3.1 kB");
  EXPECT_EQ(bytes_text(2.5e9), "2.50 GB");
  EXPECT_EQ(seconds_text(1.234), "1.23 s");
  EXPECT_EQ(seconds_text(80.06), "80.1 s");
  EXPECT_EQ(seconds_text(119.99), "120.0 s");
  EXPECT_EQ(seconds_text(599.99), "10 min 00 s");
  EXPECT_EQ(seconds_text(725), "12 min 05 s");
  EXPECT_EQ(seconds_text(11100), "3 h 05 min");
  EXPECT_EQ(ratio_text(533.4), "533");
  EXPECT_EQ(ratio_text(1641.2), "1,641");
  EXPECT_EQ(ratio_text(9.999), "10.0");
  EXPECT_EQ(ratio_text(99.99), "100");
  EXPECT_EQ(epochs_text(4.0), "4");
  EXPECT_EQ(epochs_text(2.374), "2.37");
  EXPECT_EQ(metric_text(0.12345), "0.1235");
  for (const auto text :
       {bytes_text, seconds_text, count_text, ratio_text, percent_text, metric_text, epochs_text}) {
    EXPECT_EQ(text(kNan), "-");
  }
}

}  // namespace
}  // namespace dgc::report
