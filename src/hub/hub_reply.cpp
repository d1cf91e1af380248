// A member's message, and the answer to it. A request that is about the next round waits: its
// answer is the commit. So a round costs a member one round trip.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "dgc/error.h"
#include "hub/hub_impl.h"

namespace dgc::hub {
namespace {

/// Commits in one answer; the rest comes with the next.
constexpr std::size_t kMostBytesOfCommits = std::size_t{16} << 20;
constexpr std::size_t kLongestMetric = 64;  // its name; it goes into the log
/// Norm of an update, by example: a sum of such updates is finite for as long as a run may take.
constexpr double kMostNorm = 1e10;

}  // namespace

Hub::Impl::News Hub::Impl::news_after(std::uint64_t round) const {
  News missed;
  const std::uint64_t last = rounds.closed();
  // `round` is what a member says, and may be any number: one is added to those below `last` alone.
  if (round >= last) return missed;
  const auto first = journal.first_commit();
  missed.snapshot = !first || *first > round + 1;
  // Who has missed many on a slow link would never get up with the others by commits alone.
  if (round + 1 < last &&
      journal.commit_bytes(round, last) > sizeof(float) * elements_of(replica->model())) {
    missed.snapshot = true;
  }
  std::size_t size = 0;
  for (std::uint64_t r = round; !missed.snapshot && r < last && size < kMostBytesOfCommits; ++r) {
    missed.commits.push_back(*journal.commit_packet(r + 1));
    size += missed.commits.back().size();
  }
  return missed;
}

Response Hub::Impl::commits(std::uint64_t after) const {
  const News missed = news_after(after);
  return packet_response({{"round", rounds.closed()}, {"snapshot", missed.snapshot}},
                         missed.blobs());
}

std::shared_ptr<const Bytes> Hub::Impl::snapshot() {
  // Whoever asks joins again, and may be the one to give them.
  if (!has_parameters) refuse(ErrorCode::wrong_order, "parameters", "are not there yet");
  auto bytes = packed.lock();
  if (!bytes || packed_round != replica->round()) {
    bytes = std::make_shared<const Bytes>(replica->snapshot());
    packed = bytes;
    packed_round = replica->round();
  }
  return bytes;
}

std::optional<Response> Hub::Impl::take_message(const std::string& name, const Packet& packet,
                                                double now) {
  const nlohmann::json& head = packet.head;
  const std::uint64_t sequence = message_number(head);
  const std::uint64_t base = whole_number(head, "base");
  Guest& guest = guests[name];
  if (rounds.outcome_of(name, sequence) != Outcome::none) return std::nullopt;  // sent again
  // Everything is checked before anything changes.
  Inside in{.part = {.member = name,
                     .sequence = sequence,
                     .base = base,
                     .examples = whole_number(head, "examples")},
            .message = Bytes(packet.blob(0).begin(), packet.blob(0).end()),
            .loss = harmless(head, "loss", 1e30)};
  const CheckedMessage message(in.message);
  for (const FrameInfo& frame : message.frames()) {
    if (frame.tensor >= replica->model().size()) {
      refuse(ErrorCode::unknown_tensor, fmt::format("tensor {}", frame.tensor),
             "is not in the model");
    }
    if (frame.elements != replica->model()[frame.tensor].elements()) {
      refuse(ErrorCode::invalid_argument, replica->model()[frame.tensor].name,
             "has another size than in the model");
    }
  }
  const std::int64_t most = 4 * std::max<std::int64_t>(plan.batch, 1);
  if (in.part.examples < 1 || in.part.examples > static_cast<std::uint64_t>(most)) {
    refuse(ErrorCode::invalid_argument, "examples",
           fmt::format("are {}, not 1 to {}", in.part.examples, most));
  }
  if (packet.blobs.size() > 1 && !packet.blobs[1].empty()) {
    if (packet.blobs[1].size() != replica->buffers().size() * sizeof(float)) {
      refuse(ErrorCode::invalid_argument, "buffers", "have another size than the model's");
    }
    in.buffers.assign(packet.blobs[1].begin(), packet.blobs[1].end());
  }
  double squares = 0.0;
  for (const Entries& entries : decode_entries(message, kMaxElements)) {
    for (const float x : entries.values) squares += static_cast<double>(x) * x;
  }
  // By example: who has more of them sends larger sums.
  in.norm = std::sqrt(squares) / static_cast<double>(in.part.examples);
  if (!(in.norm <= kMostNorm)) {
    refuse(ErrorCode::invalid_argument, fmt::format("message {} of '{}'", sequence, name),
           fmt::format("is an update of norm {:.3g}: the parameters would overflow", in.norm),
           "the training diverges: try a lower --lr");
  }
  const double seconds = harmless(head, "seconds", 1e6);
  if (seconds > 0.0) {
    const double speed = static_cast<double>(in.part.examples) / seconds;
    guest.speed = guest.speed == 0.0 ? speed : 0.7 * guest.speed + 0.3 * speed;
  }
  guest.loss = in.loss;
  guest.residual_norm = harmless(head, "residual", 1e30);
  guest.evaluates = false;
  const Outcome outcome = rounds.message(name, sequence, base, now);
  if (outcome == Outcome::none) {
    refuse(ErrorCode::wrong_order, fmt::format("message {} of '{}'", sequence, name),
           fmt::format("another one is due, after {}", rounds.members().at(name).sequence),
           "join again");
  }
  if (outcome == Outcome::open) inside[name] = std::move(in);
  if (outcome == Outcome::taken_back && !done) note(name, "sent a message that was too old", now);
  return std::nullopt;
}

Response Hub::Impl::evaluation(const std::string& name, const Packet& packet, double now) {
  EvaluationNote said{.round = whole_number(packet.head, "round"),
                      .loss = number(packet.head, "loss"),
                      .member = name};
  for (const nlohmann::json& metric : packet.head.at("metrics")) {
    if (!metric.is_array() || metric.size() != 2 || !metric[0].is_string() ||
        !metric[1].is_number() || said.metrics.size() >= 16) {
      refuse(ErrorCode::bad_state, "metrics", "are no list of names and numbers");
    }
    const auto of = metric[0].get<std::string>();
    for (std::size_t i = 0; i < of.size(); ++i) {
      if (of.size() > kLongestMetric || is_control(of, i)) {
        refuse(ErrorCode::bad_state, "metrics", "have a name that is too long, or not of one line");
      }
    }
    said.metrics.emplace_back(of, metric[1]);
  }
  if (said.metrics.empty()) refuse(ErrorCode::bad_state, "metrics", "are none");
  if (said.round > rounds.closed()) refuse(ErrorCode::wrong_order, "round", "is not over yet");
  said.metric = said.metrics.front().second;
  Guest& guest = guests[name];
  // Each time that it was asked, once: so sending it again is of no harm, and many are of no use.
  if (!guest.evaluates) return packet_response({{"taken", false}});
  guest.evaluates = false;
  rounds.arrive(name, now);
  rounds.told(name, now);
  journal.add_evaluation(said, now + clock_offset);
  if (watcher.evaluated) watcher.evaluated(said);
  return packet_response({{"taken", true}});
}

std::int64_t Hub::Impl::share_of(const Guest& guest) const {
  // A slow member gets as many as it can do in the time of the median one.
  std::vector<double> speeds;
  for (const auto& [name, other] : guests) {
    if (other.here && other.speed > 0.0) speeds.push_back(other.speed);
  }
  if (guest.speed <= 0.0 || speeds.size() < 2) return plan.batch;
  const auto middle = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
  std::nth_element(speeds.begin(), middle, speeds.end());
  const double share = static_cast<double>(plan.batch) * guest.speed / *middle;
  // Speeds are never quite the same: who is nearly as fast does as much.
  if (share > 0.75 * static_cast<double>(plan.batch)) return plan.batch;
  return std::clamp<std::int64_t>(std::llround(share), 1, plan.batch);
}

// What leases count as done and what members are known to have saved go together: a member that has
// to go back goes to the latter. A transaction may be open here.
void Hub::Impl::write_leases() {
  for (auto& [name, guest] : guests) {
    if (guest.kept == guest.line.saved) continue;
    journal.save_member(name, guest.line);
    guest.kept = guest.line.saved;
  }
  if (leases) journal.set_fact("leases", leases->to_json().dump());
}

void Hub::Impl::keep_leases(const std::string& name) {
  Transaction transaction(journal.database());
  journal.save_member(name, guests.at(name).line);
  guests.at(name).kept = guests.at(name).line.saved;
  write_leases();
  transaction.commit();
}

Lease Hub::Impl::lease_for(const std::string& name, std::uint64_t sequence, bool keep) {
  const std::int64_t count = share_of(guests.at(name));
  if (!leases) return {.sequence = sequence, .count = count};
  if (leases->has(name, sequence)) return leases->take(name, sequence, count);
  // Who does not save, or asks for ever other messages, does not get everything.
  const auto most = 2 * static_cast<std::size_t>(options.terms.save_every) + 16;
  if (leases->messages_of(name) >= most) return {.sequence = sequence};
  const Lease lease = leases->take(name, sequence, count);
  // Before anybody is told of it: after a crash nobody else must get the same.
  if (keep && lease.count > 0) write_leases();
  return lease;
}

std::optional<Response> Hub::Impl::reply(const std::string& name, std::uint64_t sequence,
                                         std::uint64_t have, double now, bool must, double held) {
  const Outcome outcome = sequence == 0 ? Outcome::none : rounds.outcome_of(name, sequence);
  const std::uint64_t last = rounds.closed();
  Lease lease{.sequence = sequence + 1};
  if (outcome != Outcome::open && !done) lease = lease_for(name, sequence + 1);
  const bool idle = outcome != Outcome::open && lease.count == 0 && !done;
  const bool nothing = outcome == Outcome::open || idle;
  if (idle) rounds.idle(name);
  // Somebody who has nothing to do saves, so that what it did is known to be done.
  const Guest& guest = guests.at(name);
  const bool save = lease.count == 0 && outcome != Outcome::open && guest.line.saved < sequence;
  if (nothing && !save && !must && have >= last) return std::nullopt;
  if (outcome == Outcome::open && !must) return std::nullopt;

  nlohmann::json head = {{"outcome", static_cast<int>(outcome)},
                         {"outcome_round", 0},
                         {"round", last},
                         {"save", save},
                         {"saved", guest.kept},
                         {"finished", done},
                         {"held", held}};
  head["members"] =
      std::max<std::int64_t>(1, std::count_if(rounds.members().begin(), rounds.members().end(),
                                              [](const auto& m) { return m.second.active; }));
  if (const auto found = rounds.members().find(name); found != rounds.members().end()) {
    head["outcome_round"] = found->second.outcome_round;
  }
  News missed;
  if (outcome != Outcome::open) {
    missed = news_after(have);
    const HubPlan::Pace now_due = pace();
    head["lease"] = {{"sequence", lease.sequence},
                     {"epoch", lease.epoch},
                     {"first", lease.first},
                     {"count", lease.count}};
    head["ratio"] = now_due.ratio;
    head["inner_lr"] = now_due.inner_lr;
    // The commit that its next message will be in, if all goes as usual.
    const bool asked = (plan.evaluate_every > 0 && (last + 1) % plan.evaluate_every == 0) ||
                       (plan.rounds > 0 && last + 1 >= plan.rounds) ||
                       (leases && leases->all_taken());
    head["buffers"] = !replica->buffers().empty() && asked;
    // Once more, where it has not said anything since: that answer was lost.
    const bool evaluates = (evaluation_due != 0 || guest.evaluates) && guest.can_evaluate &&
                           (lease.count > 0 || done) && have + missed.commits.size() >= last;
    head["evaluate"] = evaluates;
    if (evaluates && !std::exchange(guests.at(name).evaluates, true)) evaluation_due = 0;
    rounds.told(name, now);
    if (idle) rounds.idle(name);
    if (evaluates) rounds.depart(name);  // nobody waits for it meanwhile
  }
  head["snapshot"] = missed.snapshot;
  Response response = packet_response(head, missed.blobs());
  guests.at(name).line.bytes_down += response.body->size();
  bytes_down += response.body->size();
  return response;
}

void Hub::Impl::answer_waiting(double now, bool all) {
  for (auto it = waiting.begin(); it != waiting.end();) {
    const bool must = all || now - it->since >= options.poll;
    std::optional<Response> response;
    try {
      if (!it->for_parameters) {
        response = reply(it->name, it->sequence, it->have, now, must, now - it->since);
      } else if (has_parameters || must || !is_given(now)) {
        response = Response{.body = snapshot()};
        bytes_down += response->body->size();
      }
    } catch (const Error& error) {
      response = problem(status_of(error.code()), error);
    } catch (const std::exception& error) {
      response = problem(503, as_error(error));
    }
    if (!response) {
      ++it;
      continue;
    }
    const Respond respond = std::move(it->respond);
    it = waiting.erase(it);
    respond(std::move(*response));
  }
}

}  // namespace dgc::hub
