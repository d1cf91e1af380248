// Members come and go: tokens for those who are invited, sessions, where a member goes on from, and
// who gives the initial parameters.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "dgc/error.h"
#include "dgc/version.h"
#include "engine/secret.h"
#include "hub/hub_impl.h"

namespace dgc::hub {
namespace {

/// Seconds that a member has for its initial parameters before another one is asked.
constexpr double kGiving = 120.0;
constexpr std::uint64_t kMostPositions = std::uint64_t{1} << 40;

}  // namespace

Response Hub::Impl::enroll(const Packet& packet, double now) {
  const std::string wanted = text(packet.head, "name");
  if (!is_name(wanted) || wanted.size() > kLongestWish) {
    refuse(ErrorCode::invalid_argument, "name", "is no name of a member",
           "use up to 56 letters, digits, '-' and '_'");
  }
  std::unordered_set<std::string> taken;
  for (TokenLine& token : journal.tokens()) taken.insert(std::move(token.name));
  if (taken.size() >= 100'000) refuse(ErrorCode::limit_exceeded, "members", "are too many");
  std::string name = wanted;
  for (int i = 2; taken.contains(name); ++i) name = fmt::format("{}-{}", wanted, i);
  const std::string token = journal.add_token(name, Right::work, now + clock_offset);
  note(name, "got a token by the invitation", now);
  return packet_response({{"name", name}, {"token", token}});
}

Response Hub::Impl::join(const std::string& name, const Request& request, const Packet& packet,
                         double now) {
  const nlohmann::json& head = packet.head;
  if (whole_number(head, "protocol") != kProtocol || text(head, "version") != DGC_VERSION) {
    refuse(
        ErrorCode::configuration_mismatch, "version",
        fmt::format("the hub has dgc {} (protocol {}), the member dgc {} (protocol {})",
                    DGC_VERSION, kProtocol, text(head, "version"), whole_number(head, "protocol")),
        "install the same version on both");
  }
  const auto model = model_from(head.at("model"), options.most_parameters);
  const auto buffers = model_from(head.at("buffers"), options.most_parameters);
  if (model.empty()) refuse(ErrorCode::bad_state, "model", "has no tensor");
  const auto positions = static_cast<std::int64_t>(
      std::min<std::uint64_t>(whole_number(head, "positions"), kMostPositions));
  const std::string data = text(head, "data");
  if (!replica) {
    if (!plan.private_data) {
      if (positions < 1) refuse(ErrorCode::invalid_argument, "data", "has no examples");
      plan.positions = positions;
    }
    begin(model, buffers);
    try {
      // Only now: what cannot begin must not be found by the next start.
      Transaction transaction(journal.database());
      if (!plan.private_data) journal.set_fact("positions", fmt::format("{}", positions));
      journal.set_fact("data", data);
      journal.set_fact(
          "model", nlohmann::json{{"model", to_json(model)}, {"buffers", to_json(buffers)}}.dump());
      transaction.commit();
    } catch (...) {
      replica.reset();  // nor may it be gone on with, where it is not written down
      throw;
    }
  } else if (const std::string other = difference(replica->model(), model); !other.empty()) {
    refuse(ErrorCode::configuration_mismatch, "model", other, "train the model of the run");
  } else if (const std::string too = difference(replica->buffer_specs(), buffers); !too.empty()) {
    refuse(ErrorCode::configuration_mismatch, "buffers", too, "train the model of the run");
  }
  if (!plan.private_data && (positions != plan.positions || data != journal.fact("data"))) {
    refuse(ErrorCode::configuration_mismatch, "data",
           fmt::format("the run has {} ({} positions), the member has {} ({})",
                       *journal.fact("data"), plan.positions, data, positions),
           "give all members the same data, or start the hub with --private-data");
  }
  // Again, where the disk failed when the last member came: nobody else may give other ones.
  take_initial_parameters();

  // Two processes would number their messages alike, and take each other's outcomes for their own.
  const bool alive = flag(head, "alive");
  const std::string process = head.contains("process") ? text(head, "process") : "";
  if (const auto found = guests.find(name); alive && found != guests.end()) {
    const Guest& now_there = found->second;
    if (!now_there.session.empty() && now_there.process != process && !process.empty()) {
      refuse(ErrorCode::wrong_order, fmt::format("member '{}'", name),
             "has another process by now, which has joined since",
             "give each process a token and a --state folder of its own");
    }
  }

  // One that lives may be new here, too: to a hub that was restored from an older copy.
  const bool is_known = guests.contains(name);
  Guest& guest = guests[name];
  sessions.erase(guest.session);
  guest.session = detail::new_secret();
  guest.process = process;
  sessions[guest.session] = name;
  guest.seen = now;
  guest.origin = request.origin;
  // Of members that do not say so, too.
  guest.can_evaluate = !head.contains("evaluates") || flag(head, "evaluates");
  waiting.remove_if([&](const Waiting& w) { return w.name == name; });

  // Where it can go on from: as it is, if it still lives, or from one of the states that it has
  // saved, the newest that nobody else works on by now.
  const std::uint64_t last = message_number(head);
  std::uint64_t resume_from = alive ? last : 0;
  if (guest.line.revoked_after) resume_from = 0;
  if (!alive || guest.line.revoked_after) {
    if (head.contains("saved") && head["saved"].is_array()) {
      for (const nlohmann::json& entry : head["saved"]) {
        if (!entry.is_number_unsigned()) continue;
        const auto sequence = entry.get<std::uint64_t>();
        if (sequence > last) continue;
        if (guest.line.revoked_after && sequence > *guest.line.revoked_after) continue;
        resume_from = std::max(resume_from, sequence);
      }
    }
    rounds.withdraw(name);
    inside.erase(name);
    if (leases) {
      const std::int64_t lost = leases->held_by(name);
      leases->release_after(name, resume_from);
      news = true;
      if (lost > leases->held_by(name) && !guest.line.revoked_after) {
        note(name, fmt::format("came back from what it had saved at message {}", resume_from), now);
      }
    }
    guest.line.saved = resume_from;
    keep_leases(name);
  } else if (!is_known) {
    keep_leases(name);
  }
  const Outcome outcome = rounds.outcome_of(name, last);
  rounds.arrive(name, now);
  rounds.told(name, now);
  if (!guest.here) note(name, fmt::format("joined from {}", request.origin), now);
  guest.here = true;
  const Rounds::Member& member = rounds.members().at(name);
  // One gives the initial parameters; another one only where that takes too long.
  if (!has_parameters && !is_given(now)) {
    giver = name;
    asked_giver = now;
  }
  nlohmann::json said = {{"session", guest.session},
                         {"name", name},
                         {"round", rounds.closed()},
                         {"needs_parameters", !has_parameters && giver == name},
                         {"resume_from", resume_from},
                         // The hub's last word on its messages: the next has a number above it.
                         {"last_sequence", member.sequence},
                         {"outcome", static_cast<int>(outcome)},
                         {"outcome_round", member.outcome_round},
                         {"finished", done}};
  return packet_response(said);
}

Hub::Impl::Guest& Hub::Impl::guest_of(const Packet& packet, const std::string& name, double now) {
  const std::string session = text(packet.head, "session");
  Guest& guest = guests[name];
  if (guest.session.empty() || session != guest.session) {
    refuse(ErrorCode::wrong_order, fmt::format("session of '{}'", name),
           "is over: another process has joined by this name, or the hub was started again",
           "join again");
  }
  guest.seen = now;
  // It has heard from where it goes on. An answer to /v1/join that was lost has to be the same.
  if (guest.line.revoked_after) {
    guest.line.revoked_after.reset();
    keep_leases(name);
  }
  if (!guest.here) {
    guest.here = true;
    rounds.arrive(name, now);
    note(name, "is back", now);
  }
  return guest;
}

bool Hub::Impl::is_given(double now) const {
  const auto found = guests.find(giver);
  return found != guests.end() && found->second.here && now - asked_giver <= kGiving;
}

Response Hub::Impl::initial(const std::string& name, const Packet& packet, double now) {
  if (has_parameters) return packet_response({{"taken", false}});
  // As a snapshot of round 0: checked like one.
  Replica first(replica->model(), replica->buffer_specs(), options.terms);
  first.load(packet.blob(0));
  if (first.round() != 0) refuse(ErrorCode::bad_state, "parameters", "are not of round 0");
  *replica = std::move(first);
  write_snapshot();
  has_parameters = true;
  news = true;
  note(name, "gave the initial parameters", now);
  close_all_due(now);
  return packet_response({{"taken", true}});
}

Response Hub::Impl::leave(const std::string& name, const Packet& packet, double now) {
  if (packet.head.contains("saved")) set_saved(name, whole_number(packet.head, "saved"));
  Guest& guest = guests[name];
  if (leases) leases->release_after(name, guest.line.saved);
  news = true;
  keep_leases(name);
  guest.here = false;
  if (std::exchange(guest.evaluates, false)) evaluation_due = rounds.closed();  // another does it
  sessions.erase(guest.session);
  guest.session.clear();
  waiting.remove_if([&](const Waiting& w) { return w.name == name; });
  rounds.depart(name);
  note(name, "left", now);
  close_all_due(now);
  return packet_response({{"round", rounds.closed()}});
}

void Hub::Impl::set_saved(const std::string& name, std::uint64_t saved) {
  Guest& guest = guests[name];
  if (saved <= guest.line.saved) return;
  guest.line.saved = saved;
  if (leases) leases->saved(name, saved);
  // The member throws older residuals away when it hears of this: a hub that is started again has
  // to know it, too.
  Transaction transaction(journal.database());
  journal.save_member(name, guest.line);
  if (leases) journal.set_fact("leases", leases->to_json().dump());
  transaction.commit();
}

}  // namespace dgc::hub
