// What people and programs see of a run: the page's JSON, and Prometheus's text.
#include <fmt/format.h>

#include "dgc/version.h"
#include "hub/hub_impl.h"

namespace dgc::hub {
namespace {

constexpr std::size_t kPoints = 300;
constexpr std::size_t kEvents = 50;

/// Label values of Prometheus: names of members have no character that needs care.
void family(std::string& out, const char* name, const char* type, const char* help) {
  out += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

nlohmann::json Hub::Impl::status(double now) const {
  nlohmann::json members = nlohmann::json::array();
  int active = 0;
  for (const auto& [name, guest] : guests) {
    const auto found = rounds.members().find(name);
    const Rounds::Member member =
        found == rounds.members().end() ? Rounds::Member{} : found->second;
    const char* state = "away";
    if (guest.evaluates) {
      state = "evaluates";
    } else if (member.active) {
      state = inside.contains(name) ? "waits" : "computes";
    }
    if (member.active) ++active;
    members.push_back({{"name", name},
                       {"state", state},
                       {"origin", guest.origin},
                       {"round_trip", guest.rtt},
                       {"needs", member.needs},
                       {"rounds", member.rounds},
                       {"missed", member.missed},
                       {"late", member.late},
                       {"examples", guest.line.examples},
                       {"examples_per_second", guest.speed},
                       {"share", plan.batch > 0 ? static_cast<double>(share_of(guest)) /
                                                      static_cast<double>(plan.batch)
                                                : 0.0},
                       {"bytes_up", guest.line.bytes_up},
                       {"bytes_down", guest.line.bytes_down},
                       {"loss", guest.loss},
                       {"residual_norm", guest.residual_norm},
                       {"messages", member.sequence},
                       {"unsaved", member.sequence - std::min(member.sequence, guest.line.saved)},
                       {"behind", rounds.closed() - std::min(rounds.closed(), member.base)},
                       {"silent", guest.seen > 0.0 ? now - guest.seen : -1.0}});
  }
  nlohmann::json curve = nlohmann::json::array();
  const auto lines = journal.commits(kPoints);
  for (const CommitLine& line : lines) {
    curve.push_back({line.round, line.time, line.loss, line.members, line.seconds, line.ratio});
  }
  nlohmann::json evaluations = nlohmann::json::array();
  const auto notes = journal.evaluations();
  for (std::size_t i = notes.size() - std::min(notes.size(), kPoints); i < notes.size(); ++i) {
    const EvaluationNote& note = notes[i];
    evaluations.push_back({{"round", note.round},
                           {"loss", note.loss},
                           {"metric", note.metric},
                           {"name", note.metrics.empty() ? "" : note.metrics.front().first},
                           {"member", note.member}});
  }
  nlohmann::json events = nlohmann::json::array();
  for (const EventLine& event : journal.events(kEvents)) {
    events.push_back({{"time", event.time},
                      {"round", event.round},
                      {"member", event.member},
                      {"what", event.what}});
  }
  double per_minute = 0.0;
  if (lines.size() > 1) {
    const CommitLine& from = lines[lines.size() > 20 ? lines.size() - 20 : 0];
    const CommitLine& to = lines.back();
    if (to.time > from.time) {
      per_minute = 60.0 * static_cast<double>(to.round - from.round) / (to.time - from.time);
    }
  }
  return {{"version", DGC_VERSION},
          {"run", *journal.fact("run")},
          {"recipe", options.settings.empty()
                         ? nlohmann::json::object()
                         : nlohmann::json::parse(options.settings, nullptr, false)},
          {"down", name_of(options.terms.down)},
          {"momentum_correction", name_of(options.terms.momentum_correction)},
          {"time", now + clock_offset},
          {"round", rounds.closed()},
          {"rounds", plan.rounds},
          {"epoch", epoch()},
          {"epochs", plan.epochs},
          {"finished", done},
          {"failure", failure},
          {"has_parameters", has_parameters},
          {"active", active},
          {"quorum", rounds.quorum()},
          {"deadline", rounds.deadline()},
          {"open_for", has_parameters && active > 0 ? now - rounds.opened() : 0.0},
          {"inside", inside.size()},
          {"rounds_per_minute", per_minute},
          {"examples", examples},
          {"bytes_up", bytes_up},
          {"bytes_down", bytes_down},
          {"requests", requests},
          {"refused", refused},
          {"scaled", scaled},
          {"members", members},
          {"curve", curve},
          {"evaluations", evaluations},
          {"events", events}};
}

std::string Hub::Impl::metrics(const nlohmann::json& s) {
  std::string out;
  const auto one = [&](const char* name, const char* type, const char* help, const char* key) {
    family(out, name, type, help);
    out += fmt::format("{} {}\n", name, s.at(key).get<double>());
  };
  one("dgc_hub_round", "counter", "Rounds that were closed.", "round");
  one("dgc_hub_epoch", "gauge", "Passes over the data so far.", "epoch");
  one("dgc_hub_members_active", "gauge", "Members that rounds wait for.", "active");
  one("dgc_hub_rounds_per_minute", "gauge", "Of the last rounds.", "rounds_per_minute");
  one("dgc_hub_examples_total", "counter", "Examples in all commits.", "examples");
  one("dgc_hub_received_bytes_total", "counter", "From all members.", "bytes_up");
  one("dgc_hub_sent_bytes_total", "counter", "To all members.", "bytes_down");
  one("dgc_hub_requests_total", "counter", "Requests that were understood.", "requests");
  one("dgc_hub_refused_total", "counter", "Requests and connections that were refused.", "refused");
  one("dgc_hub_scaled_total", "counter", "Updates that were scaled down (--norm-bound).", "scaled");
  if (!s["curve"].empty()) {
    family(out, "dgc_hub_loss", "gauge", "Mean loss of the last round.");
    out += fmt::format("dgc_hub_loss {}\n", s["curve"].back()[2].get<double>());
  }
  if (!s["evaluations"].empty()) {
    family(out, "dgc_hub_metric", "gauge", "Of the last evaluation.");
    out += fmt::format("dgc_hub_metric {}\n", s["evaluations"].back()["metric"].get<double>());
  }
  struct {
    const char *name, *type, *help, *key;
  } const of_members[] = {
      {"dgc_hub_member_rounds_total", "counter", "Messages in commits.", "rounds"},
      {"dgc_hub_member_missed", "gauge", "Rounds in a row that closed without it.", "missed"},
      {"dgc_hub_member_late_total", "counter", "Messages that came late.", "late"},
      {"dgc_hub_member_received_bytes_total", "counter", "From this member.", "bytes_up"},
      {"dgc_hub_member_sent_bytes_total", "counter", "To this member.", "bytes_down"},
      {"dgc_hub_member_round_trip_seconds", "gauge", "As it measures it.", "round_trip"},
      {"dgc_hub_member_unsaved", "gauge", "Messages since it saved its residual.", "unsaved"},
      {"dgc_hub_member_residual_norm", "gauge", "Of what it has not sent.", "residual_norm"}};
  for (const auto& row : of_members) {
    family(out, row.name, row.type, row.help);
    for (const nlohmann::json& member : s["members"]) {
      out += fmt::format("{}{{member=\"{}\"}} {}\n", row.name, member["name"].get<std::string>(),
                         member[row.key].get<double>());
    }
  }
  return out;
}

}  // namespace dgc::hub
