// The batch of the settings is that of all workers, so a member has its share of it, whoever else
// is there: with more members than expected the batch is larger, with fewer it is smaller. The rate
// is that of the recipe all the same, as a commit is a mean over examples.
#include "train/hub_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/choice.h"
#include "dgc/error.h"
#include "train/budget.h"
#include "train/defaults.h"
#include "train/local_defaults.h"
#include "train/lr_schedule.h"
#include "train/recipe.h"

namespace dgc::train {
namespace {

using nlohmann::json;

/// Members that --workers stands for where it is not said.
constexpr std::int64_t kExpected = 4;

[[noreturn]] void refuse(const std::string& what, const std::string& problem,
                         const std::string& hint) {
  throw Error(ErrorCode::invalid_argument, "serve", what, problem, hint);
}

/// Settings of groups of workers on one machine, or of a machine with data; a hub is neither.
constexpr const char* kOfGroups[] = {"algorithm",        "link",    "reselect",     "budget",
                                     "launch",           "timeout", "emulate-link", "keep",
                                     "checkpoint-every", "data",    "threads",      "loaders"};

void check_given(const Settings& s, const json& given) {
  for (const char* name : kOfGroups) {
    if (given.contains(name)) {
      refuse(fmt::format("--{}", name), "means nothing to a hub", "leave it out");
    }
  }
  if (s.ratio == kAutoRatio) {
    refuse("--ratio auto", "measures a group's network; a hub's members have one each",
           "leave it out, or give a number");
  }
  if (is_local(s.mode) && s.mean != "workers") {
    refuse("--mean", "over those who sent an entry is for `dgc train`", "leave it out");
  }
}

std::string mode_of(const Settings& s) {
  if (s.mode == "dgc" || s.mode == "dgc-local") return s.mode;
  refuse("--mode " + s.mode, "is not for a hub, which has dgc and dgc-local",
         "--ratio 1 sends whole gradients");
}

/// Positions of the data in one step of a member.
std::int64_t step_of_member(const Settings& member) {
  return family_of(member.model) == Family::text ? member.bptt : member.batch;
}

}  // namespace

nlohmann::ordered_json to_json(const HubChoices& c) {
  return {{"down", c.down},
          {"own-model", c.own_model},
          {"private-data", c.private_data},
          {"quorum", c.quorum},
          {"deadline", c.deadline},
          {"oldest", c.oldest},
          {"norm-bound", c.norm_bound},
          {"lost-after", c.lost_after},
          {"save-every", c.save_every},
          {"snapshot-every", c.snapshot_every}};
}

HubChoices hub_choices_from(const json& json, const std::string& file) {
  try {
    HubChoices c;
    json.at("down").get_to(c.down);
    json.at("own-model").get_to(c.own_model);
    json.at("private-data").get_to(c.private_data);
    json.at("quorum").get_to(c.quorum);
    json.at("deadline").get_to(c.deadline);
    json.at("oldest").get_to(c.oldest);
    json.at("norm-bound").get_to(c.norm_bound);
    json.at("lost-after").get_to(c.lost_after);
    json.at("save-every").get_to(c.save_every);
    json.at("snapshot-every").get_to(c.snapshot_every);
    return c;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::bad_state, "serve", file, error.what(), "was it changed by hand?");
  }
}

HubRun hub_run(const Settings& given_settings, const json& given, const HubChoices& choices) {
  Settings s = given_settings;
  HubRun run{.mode = mode_of(s)};
  check_given(s, given);
  const bool local = is_local(run.mode);
  const std::int64_t expected = s.workers > 0 ? s.workers : kExpected;
  if (choices.private_data && s.steps == 0) {
    refuse("--private-data", "has epochs of its own on each member",
           "say with --steps after how many rounds the run ends");
  }

  Settings member = s;
  member.workers = 1;
  member.threads = 0;  // a matter of the member's machine
  member.data.clear();
  member.batch = batch_of_worker(s, expected);
  hub::Terms& terms = run.options.terms;
  terms.down = choices.down == "auto" ? hub::down_for(expected) : hub::parse_down(choices.down);
  run.reason = fmt::format("down-link {}", name_of(terms.down));

  const std::int64_t step = step_of_member(member);
  auto rate = std::make_shared<LrSchedule>(LrSchedule::parse(s.lr_schedule));
  run.evaluated = [rate](double loss) { rate->evaluated(loss); };
  const auto rounds = static_cast<std::uint64_t>(s.steps);
  const double epochs = s.epochs;
  // In units of the schedules: with --steps they follow the rounds, else the examples.
  const auto times = [=](const hub::HubPlan::Progress& now) {
    if (rounds == 0) return std::pair(now.epoch, epochs);
    const double all = now.positions > 0
                           ? static_cast<double>(rounds) * static_cast<double>(step * expected) /
                                 static_cast<double>(now.positions)
                           : epochs;
    return std::pair(all * static_cast<double>(now.round) / static_cast<double>(rounds), all);
  };

  if (local) {
    terms.momentum_correction = MomentumCorrection::local;
    terms.momentum = 0.0f;
    terms.residual_decay =
        static_cast<float>(number_or(s.residual_decay, static_cast<double>(kLocalResidualDecay)));
    terms.values = s.values == "auto" ? kLocalValues : parse_value_type(s.values);
    terms.dense_values = s.dense_values == "auto" ? kLocalValues : parse_value_type(s.dense_values);
    const double ratio = s.ratio == kDefaultRatio ? kLocalRatio : std::stod(s.ratio);
    const double outer_lr = number_or(s.outer_lr, 1.0);
    run.plan.pace = [=, lr = s.lr, warmup = s.lr_warmup](const hub::HubPlan::Progress& now) {
      const auto [at, all] = times(now);
      return hub::HubPlan::Pace{
          .lr = outer_lr, .inner_lr = lr * rate->factor(at, all, warmup), .ratio = ratio};
    };
  } else {
    const bool select = terms.down == hub::Down::select;
    if (s.momentum_correction == "auto") {
      // With members that come and go global momentum lost more than it won (docs/hub.md, Figures);
      // many workers need it.
      const Settings table = with_defaults(s, static_cast<int>(expected), 1).settings;
      s.momentum_correction = select ? table.momentum_correction : "local";
      run.reason += fmt::format(", momentum correction {}", s.momentum_correction);
    }
    const std::string momentum = s.momentum_correction;
    // The ratio follows from the number of steps, which is known once the first member has said how
    // many examples there are; the rest does not.
    const Settings open = s;
    s = with_defaults(open, static_cast<int>(expected), 1).settings;
    run.reason += fmt::format(", values {}", s.values);
    terms.momentum_correction = parse_momentum_correction(momentum);
    terms.momentum = static_cast<float>(s.momentum);
    terms.nesterov = s.nesterov;
    terms.masking = s.masking;
    terms.weight_decay = static_cast<float>(s.weight_decay);
    terms.clip_norm = s.clipping ? s.clip_norm : 0.0;
    terms.values = parse_value_type(s.values);
    terms.dense_values = parse_value_type(s.dense_values);
    run.plan.pace = [=](const hub::HubPlan::Progress& now) {
      const auto [at, all] = times(now);
      // Steps of the size that all expected members have together.
      const double steps_per_epoch = now.positions > 0 ? static_cast<double>(now.positions) /
                                                             static_cast<double>(step * expected)
                                                       : static_cast<double>(rounds) / all;
      const auto steps = static_cast<std::uint64_t>(std::max(1.0, all * steps_per_epoch));
      const Settings settings = with_defaults(open, static_cast<int>(expected), steps).settings;
      const Schedule ratio =
          schedule_of(settings, std::max<std::int64_t>(1, std::llround(steps_per_epoch)));
      return hub::HubPlan::Pace{
          .lr = settings.lr * rate->factor(at, all, settings.lr_warmup),
          .ratio = ratio.ratio_at(static_cast<std::int64_t>(at * steps_per_epoch))};
    };
  }

  run.plan.epochs = epochs;
  run.plan.rounds = rounds;
  run.plan.batch = step * (local ? s.local_steps : 1);
  run.plan.expected = expected;
  run.plan.evaluate_every = static_cast<std::uint64_t>(s.evaluate_every);
  run.plan.private_data = choices.private_data;
  run.plan.snapshot_every = choices.snapshot_every;
  terms.save_every = choices.save_every;
  terms.check();
  run.options.rules = {
      .quorum = choices.quorum, .deadline = choices.deadline, .oldest = choices.oldest};
  run.options.norm_bound = choices.norm_bound;
  run.options.lost_after = choices.lost_after;
  run.options.settings = json{
      {"recipe", choices.own_model ? "" : s.recipe},
      {"model", choices.own_model ? "" : s.model},
      {"mode", run.mode},
      {"settings",
       to_json(member)}}.dump();
  return run;
}

MemberRun member_run(const std::string& settings_of_hub) {
  const json all = json::parse(settings_of_hub, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || !all.contains("settings") || !all["settings"].is_object()) {
    throw Error(ErrorCode::bad_state, "join", "settings", "of the hub are not understood",
                "has it the same version of dgc?");
  }
  MemberRun run;
  apply(run.settings, all["settings"], "the hub's settings");
  run.mode = all.value("mode", "dgc");
  run.own_model = all.value("recipe", "").empty();
  return run;
}

}  // namespace dgc::train
