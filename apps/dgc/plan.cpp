// dgc plan: whether compression pays, and which way, before anything is bought or rewritten.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "base/file.h"
#include "base/quantity.h"
#include "command.h"
#include "dgc/error.h"
#include "dgc/exchange.h"
#include "plan/advice.h"
#include "plan/chart.h"
#include "plan/costs_file.h"
#include "plan/hub_table.h"
#include "plan/local.h"
#include "process/terminal.h"
#include "train/measure_compute.h"

namespace dgc::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kDefaultBatch = 32;

struct Options {
  std::string model, compute, latency = "50us", inside, values;
  std::string algorithm, costs, chart, hub;
  std::vector<std::string> bandwidths = {"1Gbps"};
  std::vector<std::string> nodes = {"2", "4", "8", "16", "32", "64"};
  std::string parameters, one_dimensional, ratio, network_share, workers_per_node = "1",
                                                                 shared_cores;
  bool measure = false, as_json = false;
  std::string batch;
};

/// What comes of one bandwidth and one number of nodes.
struct Plan {
  double bandwidth;
  int nodes;
  std::vector<plan::Prediction> predictions;
  plan::Advice advice;
};

[[noreturn]] void refuse(const std::string& subject, const std::string& problem,
                         const std::string& hint) {
  throw Error(ErrorCode::invalid_argument, "plan", subject, problem, hint);
}

template <typename Number>
Number parse_number(const std::string& option, const std::string& text, Number low, Number high,
                    const char* example) {
  const auto first = std::min(text.find_first_not_of(' '), text.size());
  const char* const end = text.data() + text.size();
  Number value{};
  const auto [stop, error] = std::from_chars(text.data() + first, end, value);
  const bool whole = error == std::errc{} && stop == end;
  if (!whole || !(value >= low && value <= high)) {
    refuse(fmt::format("{} '{}'", option, text),
           whole                        ? "is out of range"
           : std::is_integral_v<Number> ? "is no whole number"
                                        : "is no number",
           fmt::format("from {} to {}, as {}", low, high, example));
  }
  return value;
}

models::Model model_of(const Options& o) {
  if (o.model.empty() == o.parameters.empty()) {
    refuse("--model", o.model.empty() ? "no model is given" : "and --parameters are both given",
           "say --model resnet50, or --parameters 25557032 for a model of your own");
  }
  if (!o.model.empty()) {
    if (!o.one_dimensional.empty())
      refuse("--one-dimensional", "belongs to --parameters", "leave it out");
    return models::model_named(o.model, "plan", "--model", "; any other by --parameters");
  }
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  models::Model own{.name = "own"};
  own.parameters = parse_number<std::uint64_t>("--parameters", o.parameters, 1, kMost, "25557032");
  if (!o.one_dimensional.empty()) {
    own.one_dimensional = parse_number<std::uint64_t>("--one-dimensional", o.one_dimensional, 0,
                                                      own.parameters, "53120");
  }
  own.title = fmt::format("a model of {} parameters", grouped(own.parameters));
  return own;
}

ValueType values_of(const std::string& text) {
  try {
    return parse_value_type(text);
  } catch (const Error&) {
    refuse(fmt::format("--values '{}'", text), "is unknown",
           "fp32, fp16, bf16, int8, sign, table2 or table4");
  }
}

plan::Scenario setup_of(const Options& o) {
  plan::Scenario setup;
  setup.model = model_of(o);
  if (!o.ratio.empty()) setup.ratio = parse_number<double>("--ratio", o.ratio, 1e-9, 1.0, "0.001");
  if (!o.network_share.empty()) setup.values = ValueType::table2;
  if (!o.values.empty()) setup.values = values_of(o.values);
  setup.latency = parse_duration("--latency", o.latency, true);
  setup.workers_per_node = parse_number("--workers-per-node", o.workers_per_node, 1, 1024, "8");
  if (!o.inside.empty()) {
    setup.inside = parse_bandwidth("--inside-bandwidth", o.inside);
    if (setup.workers_per_node == 1)
      refuse("--inside-bandwidth", "a node has one worker",
             "say --workers-per-node 4, or leave it out");
  }
  if (!o.shared_cores.empty())
    setup.shared_cores = parse_number("--shared-cores", o.shared_cores, 1, 4096, "2");
  if (!o.costs.empty()) plan::read_costs(o.costs, setup);
  if (o.measure != o.compute.empty()) {
    refuse("--compute", o.measure ? "and --measure are both given" : "no compute time is given",
           "say --compute 120ms, what a step of one worker takes, or --measure to run it here");
  }
  if (!o.measure) {
    if (!o.batch.empty()) refuse("--batch", "belongs to --measure", "leave it out");
    setup.compute = parse_duration("--compute", o.compute);
    return setup;
  }
  if (o.model.empty()) {
    refuse("--measure", "only models that are known by name can be run", "say --compute 120ms");
  }
  const int batch =
      o.batch.empty() ? kDefaultBatch : parse_number("--batch", o.batch, 1, 1 << 20, "32");
  setup.compute = train::measure_compute(setup.model, batch, setup.shared_cores > 0 ? 1 : 0);
  return setup;
}

/// What --algorithm may be: "auto, allgather".
std::string names_of(int workers_per_node) {
  plan::Scenario setup;
  setup.workers_per_node = workers_per_node;
  std::string names;
  for (const plan::Method method : plan::methods_for(setup)) {
    if (!plan::compresses(method)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", plan::title_of(method).substr(4));
  }
  return names;
}

/// Those that were asked for: all dense ones, and one or all of DGC's.
std::vector<plan::Method> methods_of(const Options& o, const plan::Scenario& setup) {
  std::vector<plan::Method> methods = plan::methods_for(setup);
  if (o.algorithm.empty()) return methods;
  const std::string wanted = "dgc " + o.algorithm;
  std::erase_if(methods, [&](plan::Method method) {
    return plan::compresses(method) && plan::title_of(method) != wanted;
  });
  if (!plan::compresses(methods.back())) {
    refuse(fmt::format("--algorithm '{}'", o.algorithm), "is not one to plan with",
           fmt::format("one of {}{}", names_of(setup.workers_per_node),
                       setup.workers_per_node == 1
                           ? fmt::format("; {} with --workers-per-node 2 or more", names_of(2))
                           : ""));
  }
  return methods;
}

std::vector<int> nodes_of(const Options& o, int least) {
  std::vector<int> nodes;
  for (const std::string& text : o.nodes) {
    nodes.push_back(parse_number("--nodes", text, least, 65536, "2,4,8"));
  }
  return nodes;
}

std::vector<Plan> plans_of(const Options& o, plan::Scenario& setup) {
  const std::vector<int> nodes = nodes_of(o, 1);
  const auto methods = methods_of(o, setup);
  std::vector<Plan> plans;
  for (const std::string& text : o.bandwidths) {
    setup.bandwidth = parse_bandwidth("--bandwidth", text);
    for (const int count : nodes) {
      Plan one{setup.bandwidth, count, {}, {}};
      for (const plan::Method method : methods)
        one.predictions.push_back(plan::predict(setup, method, count));
      one.advice = plan::advise(setup, one.predictions);
      plans.push_back(std::move(one));
    }
  }
  return plans;
}

/// What a worker keeps beside the model, in bytes: v, and u with local momentum correction.
double residual_bytes(const plan::Scenario& setup, bool velocity) {
  return (velocity ? 8.0 : 4.0) * static_cast<double>(setup.model.parameters);
}

json to_json(const plan::Scenario& setup, const std::vector<Plan>& plans) {
  const auto parameters = static_cast<double>(setup.model.parameters);
  json out = {{"model", setup.model.title},
              {"parameters", setup.model.parameters},
              {"one_dimensional", setup.model.one_dimensional},
              {"compute_seconds", setup.compute},
              {"ratio", setup.ratio},
              {"values", name_of(setup.values)},
              {"message_bytes", plan::message_bytes(setup)},
              {"message_ratio", 4.0 * parameters / plan::message_bytes(setup)},
              {"residual_bytes",
               {{"local", residual_bytes(setup, true)}, {"global", residual_bytes(setup, false)}}},
              {"assumptions",
               {{"overlap", false},
                {"payload_share", setup.payload},
                {"latency_seconds", setup.latency},
                {"inside_bandwidth", setup.inside},
                {"select_seconds_per_element", setup.costs.select},
                {"encode_seconds_per_entry", setup.costs.encode},
                {"seconds_per_entry", setup.costs.entry},
                {"place_seconds_per_entry", setup.costs.place},
                {"slice_seconds_per_element", setup.costs.slice},
                {"dense_seconds_per_element", setup.costs.dense},
                {"dense16_seconds_per_element", setup.costs.dense16},
                {"seconds_per_byte", setup.costs.byte},
                {"seconds_per_message", setup.costs.message},
                {"seconds_per_round", setup.costs.round},
                {"worthwhile_share", plan::kWorthwhile}}},
              {"plans", json::array()}};
  for (const Plan& one : plans) {
    json methods = json::array();
    for (const plan::Prediction& p : one.predictions) {
      methods.push_back({{"method", plan::title_of(p.method)},
                         {"step_seconds", p.step},
                         {"compute_seconds", p.compute},
                         {"coding_seconds", p.coding},
                         {"network_seconds", p.network},
                         {"speedup", p.speedup},
                         {"efficiency", p.efficiency},
                         {"received_bytes", p.received_bytes},
                         {"link_bytes", p.link_bytes}});
    }
    out["plans"].push_back({{"bandwidth", one.bandwidth},
                            {"nodes", one.nodes},
                            {"workers", one.nodes * setup.workers_per_node},
                            {"predictions", methods},
                            {"recommended", plan::title_of(one.advice.method)},
                            {"pays", one.advice.pays},
                            {"gain", one.advice.gain},
                            {"pays_below", one.advice.below},
                            {"advice", one.advice.text}});
  }
  return out;
}

std::string summary_of(const plan::Scenario& setup) {
  std::string text = fmt::format(
      "{}, {} a step of one worker; DGC's message {}, {:.0f}x less than fp32", setup.model.title,
      duration_text(setup.compute), bytes_text(plan::message_bytes(setup)),
      4.0 * static_cast<double>(setup.model.parameters) / plan::message_bytes(setup));
  if (setup.workers_per_node > 1)
    text += fmt::format("; {} workers a node", setup.workers_per_node);
  if (setup.shared_cores > 0) {
    text += fmt::format("; all workers share {} {}", setup.shared_cores,
                        setup.shared_cores == 1 ? "core" : "cores");
  }
  return text;
}

void print_plans(const plan::Scenario& setup, const std::vector<Plan>& plans) {
  fmt::print("{}.\n{}", summary_of(setup), plan::assumptions_text(setup));
  fmt::print(
      "Memory of a worker beside the model: {} with momentum correction local (u and v), {} "
      "with global (v).\n",
      bytes_text(residual_bytes(setup, true)), bytes_text(residual_bytes(setup, false)));
  for (std::size_t i = 0; i < plans.size();) {
    const double bandwidth = plans[i].bandwidth;
    fmt::print("\n{}\n", bandwidth_text(bandwidth));
    std::vector<std::vector<std::string>> rows = {
        {"nodes", "method", "step", "speed-up", "efficiency", "received", "  "}};
    std::string advice;
    for (; i < plans.size() && plans[i].bandwidth == bandwidth; ++i) {
      for (const plan::Prediction& p : plans[i].predictions) {
        rows.push_back({std::to_string(p.nodes), std::string(plan::title_of(p.method)),
                        duration_text(p.step), fmt::format("{:.1f}", p.speedup),
                        fmt::format("{:.0f} %", 100.0 * p.efficiency), bytes_text(p.received_bytes),
                        p.method == plans[i].advice.method ? "<- take this" : ""});
      }
      advice += fmt::format("{} nodes: {}.\n", plans[i].nodes, plans[i].advice.text);
    }
    fmt::print("{}\n{}", process::table(rows), advice);
  }
}

/// "5%" as 0.05.
double share_of(const std::string& text) {
  if (text.empty() || text.back() != '%') {
    refuse(fmt::format("--network-share '{}'", text), "is no percentage", "such as 5%");
  }
  const std::string number = text.substr(0, text.size() - 1);
  return parse_number<double>("--network-share", number, 0.01, 99.0, "5%") / 100.0;
}

/// How many local steps, for each way to exchange.
void plan_rounds(const Options& o, plan::Scenario& setup) {
  if (!o.algorithm.empty() || !o.chart.empty()) {
    refuse(o.chart.empty() ? "--algorithm" : "--chart", "does not go with --network-share",
           "leave one of them out");
  }
  const double share = share_of(o.network_share);
  const std::optional<double> ratio = o.ratio.empty() ? std::nullopt : std::optional(setup.ratio);
  json out = {{"model", setup.model.title},       {"parameters", setup.model.parameters},
              {"compute_seconds", setup.compute}, {"network_share", share},
              {"values", name_of(setup.values)},  {"plans", json::array()}};
  std::string text =
      fmt::format("{}, {} a step of one worker; exchanges take at most {:.3g} % of the time.\n",
                  setup.model.title, duration_text(setup.compute), 100.0 * share);
  for (const std::string& bandwidth : o.bandwidths) {
    setup.bandwidth = parse_bandwidth("--bandwidth", bandwidth);
    std::vector<std::vector<std::string>> rows = {{"nodes", "mode", "ratio", "bits a parameter",
                                                   "exchange", "local steps", "step", "speed-up",
                                                   "received a step"}};
    for (const int nodes : nodes_of(o, 2)) {
      for (const plan::LocalPlan& p : plan::plan_local(setup, nodes, share, ratio)) {
        rows.push_back({std::to_string(nodes), p.title, fmt::format("{:.3g} %", 100.0 * p.ratio),
                        fmt::format("{:.3g}", p.bits), duration_text(p.exchange),
                        std::to_string(p.local_steps), duration_text(p.step),
                        fmt::format("{:.1f}", p.speedup), bytes_text(p.received_bytes)});
        json one = to_json(p);
        one.update({{"bandwidth", setup.bandwidth},
                    {"nodes", nodes},
                    {"mode", p.title},
                    {"received_bytes_per_step", p.received_bytes}});
        out["plans"].push_back(std::move(one));
      }
    }
    text += fmt::format("\n{}, {} a message\n{}", bandwidth_text(setup.bandwidth),
                        duration_text(setup.latency), process::table(rows));
  }
  if (o.as_json) {
    fmt::print("{}\n", out.dump(2));
  } else {
    fmt::print(
        "{}\nMore local steps and lower ratios cost accuracy: docs/local.md has what was "
        "measured.\n",
        text);
  }
}

/// Over a hub: rounds, or with --network-share local steps between them.
void plan_over_hub(const Options& o, plan::Scenario& setup) {
  for (const auto& [name, given] :
       {std::pair("--algorithm", !o.algorithm.empty()), std::pair("--chart", !o.chart.empty())}) {
    if (given) refuse(name, "does not go with --hub", "leave one of them out");
  }
  if (setup.workers_per_node > 1 || setup.shared_cores > 0) {
    refuse(setup.shared_cores > 0 ? "--shared-cores" : "--workers-per-node",
           "does not go with --hub: each member is one worker on a machine of its own",
           "leave one of them out");
  }
  const double hub = parse_bandwidth("--hub", o.hub);
  const bool local = !o.network_share.empty();
  const double share = local ? share_of(o.network_share) : 0.0;
  const std::optional<double> ratio = o.ratio.empty() ? std::nullopt : std::optional(setup.ratio);
  const std::vector<int> members = nodes_of(o, 1);
  std::vector<plan::HubPlan> rounds;
  std::vector<plan::HubLocalPlan> steps;
  json out = {{"model", setup.model.title},
              {"parameters", setup.model.parameters},
              {"compute_seconds", setup.compute},
              {"latency_seconds", setup.latency},
              {"values", name_of(setup.values)},
              {"hub_bandwidth", hub},
              {"plans", json::array()}};
  out.emplace(local ? "network_share" : "ratio", local ? share : setup.ratio);
  for (const std::string& bandwidth : o.bandwidths) {
    setup.bandwidth = parse_bandwidth("--bandwidth", bandwidth);
    for (const int count : members) {
      if (local) {
        for (auto& plan : plan::plan_hub_local(setup, hub, count, share, ratio)) {
          out["plans"].push_back(plan::to_json(plan));
          steps.push_back(std::move(plan));
        }
      } else {
        rounds.push_back(plan::plan_hub(setup, hub, count));
        out["plans"].push_back(plan::to_json(rounds.back()));
      }
    }
  }
  if (o.as_json) return fmt::print("{}\n", out.dump(2));
  if (local) {
    fmt::print("{}, {} a step of one member; exchanges take at most {:.3g} % of the time.\n",
               setup.model.title, duration_text(setup.compute), 100.0 * share);
  } else {
    fmt::print("{}.\n{}", summary_of(setup), plan::assumptions_text(setup));
  }
  for (const plan::HubTable& shown :
       local ? plan::hub_tables(setup, hub, steps) : plan::hub_tables(setup, hub, rounds)) {
    fmt::print("\n{}\n{}", shown.heading, process::table(shown.rows));
    if (!shown.advice.empty()) fmt::print("\n{}", shown.advice);
  }
}

void write_chart(const Options& o, const plan::Scenario& setup, const std::vector<Plan>& plans) {
  const std::string extension = fs::path(o.chart).extension().string();
  std::vector<plan::Panel> panels;
  for (const Plan& one : plans) {
    const std::string title = "speed-up at " + bandwidth_text(one.bandwidth);
    if (panels.empty() || panels.back().title != title) panels.push_back({title, {}});
    for (const plan::Prediction& p : one.predictions) {
      // allgather is auto without its shortcut: one line of the two is enough.
      const bool twin = p.method == plan::Method::allgather && o.algorithm.empty();
      if (!twin) panels.back().predictions.push_back(p);
    }
  }
  const std::string note = summary_of(setup) + ". Predicted by dgc plan; dotted: ideal.";
  const std::string title = setup.model.title + ": speed-up against nodes";
  const std::string text = extension == ".svg" ? plan::chart_svg(title, note, panels)
                                               : plan::chart_html(title, note, panels);
  AtomicFile file(o.chart);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void run(const Options& o) {
  const std::string extension = fs::path(o.chart).extension().string();
  if (!o.chart.empty() && extension != ".svg" && extension != ".html") {
    refuse(fmt::format("--chart '{}'", o.chart), "is neither .svg nor .html",
           fmt::format("{}.svg?", fs::path(o.chart).stem().string()));
  }
  plan::Scenario setup = setup_of(o);
  if (!o.hub.empty()) return plan_over_hub(o, setup);
  if (!o.network_share.empty()) return plan_rounds(o, setup);
  const std::vector<Plan> plans = plans_of(o, setup);
  if (!o.chart.empty()) write_chart(o, setup, plans);
  if (o.as_json) {
    fmt::print("{}\n", to_json(setup, plans).dump(2));
  } else {
    print_plans(setup, plans);
    if (!o.chart.empty()) fmt::print("\nchart: {}\n", o.chart);
  }
}

}  // namespace

void add_plan(CLI::App& app) {
  auto* command = app.add_subcommand("plan", "Predict whether compression pays on your network");
  command->footer(
      "The table begins with the assumptions. docs/plan.md has the equations.\n\n"
      "Example: 8 machines on 1 Gbps Ethernet, on which a step of ResNet-50 takes 250 ms\n"
      "  dgc plan --model resnet50 --compute 250ms --bandwidth 1Gbps --nodes 8\n\n"
      "More examples:\n"
      "  dgc plan --model lstm --measure --batch 20 --bandwidth 100Mbps --nodes 2,4,8\n"
      "  dgc plan --parameters 340000000 --compute 1.2s --workers-per-node 4 --nodes 2,4,8\n"
      "  dgc plan --model gpt2 --compute 3s --bandwidth 20Mbps --latency 25ms --nodes 4 "
      "--network-share 5%\n"
      "  dgc plan --model resnet50 --compute 250ms --bandwidth 20Mbps --latency 25ms --nodes "
      "4,8,32 "
      "--hub 1Gbps\n"
      "  dgc plan --model alexnet --compute 360ms --bandwidth 1Gbps,10Gbps --chart alexnet.svg");
  auto o = std::make_shared<Options>();
  command->add_option("--model", o->model, "A known model: alexnet, resnet50, vgg16, lstm …");
  command->add_option("--parameters", o->parameters,
                      "For a model of your own: its number of parameters");
  command->add_option(
      "--one-dimensional", o->one_dimensional,
      "How many of those are biases or normalisation, which are sent whole (default: 0)");
  command->add_option("--compute", o->compute,
                      "Time that one worker takes to compute a step, such as 120ms");
  command->add_flag("--measure", o->measure, "Measure that time on this machine");
  command->add_option(
      "--batch", o->batch,
      fmt::format("Examples of a worker's step, for --measure (default: {})", kDefaultBatch));
  command
      ->add_option("--bandwidth", o->bandwidths,
                   "Bandwidth of a node's link, such as 1Gbps; several with commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--latency", o->latency, "Time that a message takes between nodes")
      ->capture_default_str();
  command->add_option("--nodes", o->nodes, "Number of nodes; several with commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--workers-per-node", o->workers_per_node,
                   "Workers (GPUs or processes) on each node")
      ->capture_default_str();
  command->add_option("--inside-bandwidth", o->inside,
                      "Bandwidth between workers of a node (default: 100Gbps)");
  command->add_option("--algorithm", o->algorithm,
                      fmt::format("Exchange: one of {} (default: compare all)", names_of(2)));
  command->add_option("--ratio", o->ratio,
                      "Share of the gradient's entries that is sent (default: 0.001; with "
                      "--network-share: several)");
  command->add_option("--values", o->values,
                      "Number format of the entries: fp32, fp16, bf16, int8, sign, table2 or "
                      "table4 (default: fp16; with --network-share: table2)");
  command->add_option("--network-share", o->network_share,
                      "Local steps: how many keep exchanges within this share of the time, such as "
                      "5%");
  command->add_option("--hub", o->hub,
                      "Over a hub (dgc serve) with a link of this bandwidth; --bandwidth and "
                      "--latency are then of each member");
  command->add_option("--shared-cores", o->shared_cores,
                      "All workers run on one machine and share so many cores");
  command->add_option("--costs", o->costs, "Read other constants from a JSON file (docs/plan.md)");
  command->add_option("--chart", o->chart,
                      "Draw the speed-up against nodes, into FILE.svg or FILE.html");
  command->add_flag("--json", o->as_json, "Print the predictions as JSON");
  command->callback([o] { run(*o); });
}

}  // namespace dgc::app
