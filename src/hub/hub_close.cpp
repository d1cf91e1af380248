// Closing a round: make the commit, write it down, apply it, answer who waits. In this order: a
// commit that is written has happened, and one that is not has not.
//
// With Down::select the hub is the owner of everything (exchange/owners.h): what it receives goes
// into its residual, the largest entries of that are the commit, and the rest stays. Global
// momentum is in that residual, too: m times what was applied goes back into it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/file.h"
#include "dgc/error.h"
#include "hub/hub_impl.h"

namespace dgc::hub {
namespace {

constexpr std::size_t kSnapshots = 2;      // that are kept
constexpr std::size_t kTypicalNorms = 16;  // rounds

/// Of two: the lower.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string snapshot_name(std::uint64_t round) {
  return fmt::format("round-{:09}.snapshot", round);
}

}  // namespace

void Hub::Impl::begin(std::vector<TensorSpec> model, std::vector<TensorSpec> buffers) {
  if (plan.positions > 0) {
    // A run of so many rounds has as many examples as it takes.
    const auto total =
        plan.rounds > 0 ? std::numeric_limits<std::int64_t>::max() / 2
                        : static_cast<std::int64_t>(
                              std::ceil(plan.epochs * static_cast<double>(plan.positions) - 1e-6));
    if (!plan.private_data) leases.emplace(plan.positions, total);
    if (plan.evaluate_every == 0) {
      // About once an epoch, of as many members as are expected.
      const std::int64_t round = std::max<std::int64_t>(1, plan.batch * plan.expected);
      plan.evaluate_every =
          std::max<std::uint64_t>(1, static_cast<std::uint64_t>(plan.positions / round));
    }
  }
  if (options.terms.down == Down::select) {
    residual.emplace(model, 0, 1, /*with_velocity=*/false);
    selector.emplace(*residual, options.terms.hub_options());
  }
  replica.emplace(std::move(model), std::move(buffers), options.terms);
}

void Hub::Impl::take_initial_parameters() {
  const auto path = folder / kInitialFile;
  if (has_parameters || !std::filesystem::exists(path)) return;
  const MappedFile file(path);
  const Packet packet = read_packet(file.contents());
  const auto specs = model_from(packet.head.at("tensors"), options.most_parameters);
  Replica first(replica->model(), replica->buffer_specs(), options.terms);
  const auto fill = [&](const TensorSpec& spec, std::span<float> values) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].name != spec.name) continue;
      const auto bytes = packet.blob(i);
      if (specs[i].shape != spec.shape || bytes.size() != values.size_bytes()) break;
      if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return;
    }
    // No member can mend this.
    failure =
        fmt::format("{} is not in the checkpoint to begin with, or has another shape", spec.name);
    throw Error(ErrorCode::configuration_mismatch, "hub", "--from", failure,
                "start the hub with a checkpoint of the same model");
  };
  const auto parameters = first.parameters();
  for (std::size_t t = 0; t < parameters.size(); ++t) fill(first.model()[t], parameters[t]);
  std::size_t at = 0;
  for (const TensorSpec& spec : first.buffer_specs()) {
    const auto size = static_cast<std::size_t>(spec.elements());
    fill(spec, std::span(first.buffers()).subspan(at, size));
    at += size;
  }
  *replica = std::move(first);
  write_snapshot();
  has_parameters = true;
}

void Hub::Impl::resume() {
  const nlohmann::json known = nlohmann::json::parse(*journal.fact("model"));
  if (const auto positions = journal.fact("positions")) {
    std::from_chars(positions->data(), positions->data() + positions->size(), plan.positions);
  }
  begin(model_from(known.at("model"), options.most_parameters),
        model_from(known.at("buffers"), options.most_parameters));
  std::map<std::string, Rounds::Member> members;
  for (const auto& [name, line] : journal.members()) {
    guests[name].line = line;
    guests[name].kept = line.saved;
    members[name] = line.rounds;
  }
  const auto snapshots = journal.snapshots();
  const auto last = journal.last_commit();
  rounds.resume(last ? last->round : 0, std::move(members));
  if (last) {
    examples = last->examples;
    bytes_up = last->bytes_up;
    bytes_down = last->bytes_down;
  }
  if (leases) {
    if (const auto kept = journal.fact("leases")) {
      leases = Leases::from(nlohmann::json::parse(*kept));
    }
  }
  if (snapshots.empty()) return take_initial_parameters();  // nobody gave any yet
  {
    const MappedFile file(folder / snapshots.front().second);
    const Packet packet = replica->load(file.contents());
    if (residual) {
      const auto saved = packet.blob(Replica::first_extra());
      std::size_t at = 0;
      for (std::size_t t = 0; t < residual->tensors().size(); ++t) {
        const std::span<float> v = residual->residual(t);
        if (at + v.size_bytes() > saved.size()) {
          throw Error(ErrorCode::truncated, "hub", snapshots.front().second, "ends early");
        }
        if (!v.empty()) std::memcpy(v.data(), saved.data() + at, v.size_bytes());
        at += v.size_bytes();
      }
      // Messages have the step in them.
      residual->set_step(replica->round());
    }
  }
  for (std::uint64_t r = replica->round() + 1; r <= rounds.closed(); ++r) {
    const auto packet = journal.commit_packet(r);
    if (!packet) {
      throw Error(ErrorCode::io, "hub", fmt::format("commit {}", r), "is missing in the journal");
    }
    const Commit commit = commit_from(*packet);
    if (residual) redo_selection(commit, *journal.commit_inbox(r));
    replica->apply(commit);
  }
  has_parameters = true;
  done = journal.fact("finished").has_value();
  if (!done) return;
  rounds.finish();
  ask_for_last_evaluation();
}

double Hub::Impl::epoch() const {
  if (plan.positions == 0) return 0.0;
  const double taken =
      leases ? static_cast<double>(leases->taken()) : static_cast<double>(examples);
  return taken / static_cast<double>(plan.positions);
}

HubPlan::Pace Hub::Impl::pace() const {
  return plan.pace({.epoch = epoch(), .round = rounds.closed(), .positions = plan.positions});
}

Commit Hub::Impl::make_commit(const std::vector<std::string>& names) {
  const HubPlan::Pace due = pace();
  Commit commit{.round = rounds.closed(),
                .lr = static_cast<float>(due.lr),
                .share = 1.0f,
                .ratio = due.ratio};
  std::vector<double> norms;
  for (const std::string& name : names) norms.push_back(inside.at(name).norm);
  // Nobody else is in the round: then the rounds before say what is usual.
  const double median = names.size() == 1 && !typical_norms.empty()
                            ? median_of({typical_norms.begin(), typical_norms.end()})
                            : median_of(norms);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Part part = inside.at(names[i]).part;
    const double most = options.norm_bound * median;
    if (options.norm_bound > 0.0 && norms[i] > most) {
      part.factor = static_cast<float>(most / norms[i]);
      ++scaled;
    }
    commit.parts.push_back(std::move(part));
  }
  const std::size_t size = replica->buffers().size();
  std::vector<double> means(size);
  double weight = 0.0;
  for (const std::string& name : names) {
    const Inside& in = inside.at(name);
    if (in.buffers.empty()) continue;
    std::vector<float> values(size);
    std::memcpy(values.data(), in.buffers.data(), in.buffers.size());
    if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
      continue;
    }
    const auto w = static_cast<double>(in.part.examples);
    for (std::size_t i = 0; i < size; ++i) means[i] += w * static_cast<double>(values[i]);
    weight += w;
  }
  if (weight > 0.0) {
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(means[i] / weight);
    const auto bytes = std::as_bytes(std::span(values));
    commit.buffers.assign(bytes.begin(), bytes.end());
  }
  if (commit.round % static_cast<std::uint64_t>(options.terms.check_every) == 0) {
    commit.parameters = replica->hash();
  }
  return commit;
}

Bytes Hub::Impl::select(const Commit& commit, const Inbox& inbox) {
  const auto share = static_cast<float>(1.0 / static_cast<double>(examples_of(inbox.parts)));
  std::vector<std::vector<float>> sums;
  std::vector<std::span<float>> targets;
  for (const TensorSpec& spec : replica->model()) sums.emplace_back(spec.elements(), 0.0f);
  targets.assign(sums.begin(), sums.end());
  for (std::size_t i = 0; i < inbox.parts.size(); ++i) {
    decode_add(CheckedMessage(inbox.messages[i]), targets, share * inbox.parts[i].factor);
  }
  std::vector<Gradient> gradients;
  for (std::size_t t = 0; t < sums.size(); ++t) gradients.push_back({t, sums[t]});
  selector->change_schedule(Schedule(options.down_ratio > 0.0 ? options.down_ratio : commit.ratio));
  Bytes message(selector->bound(gradients));
  message.resize(selector->compress(gradients, message));
  selector->applied(CheckedMessage(message));
  return message;
}

void Hub::Impl::redo_selection(const Commit& commit, std::span<const std::byte> inbox) {
  const Bytes again = select(commit, inbox_from(inbox));
  selector->commit();
  if (again != commit.messages.at(0)) {
    throw Error(ErrorCode::diverged, "hub", fmt::format("commit {}", commit.round),
                "the hub would select something else now than it did",
                "its folder was changed, or the version of dgc; restore it from a backup");
  }
}

void Hub::Impl::close(double now) {
  const double open_for = now - rounds.opened();
  // Everything that can fail comes first; then the journal; then memory.
  Rounds after = rounds;
  const std::vector<std::string> names = after.close(now);
  std::swap(rounds, after);  // make_commit and pace look at the closed round
  Commit commit;
  CommitLine line;
  double typical = 0.0;
  bool selected = false;
  try {
    commit = make_commit(names);
    const std::uint64_t new_examples = examples_of(commit.parts);
    std::vector<double> norms;
    for (const Part& part : commit.parts) {
      norms.push_back(inside.at(part.member).norm * static_cast<double>(part.factor));
    }
    typical = median_of(std::move(norms));
    std::vector<Bytes> messages;
    for (const std::string& name : names) messages.push_back(inside.at(name).message);
    Bytes received;
    if (options.terms.down == Down::select) {
      const Inbox inbox{.parts = std::exchange(commit.parts, {}), .messages = std::move(messages)};
      commit.messages = {select(commit, inbox)};
      selected = true;
      received = to_bytes(inbox);
    } else {
      commit.share = static_cast<float>(1.0 / static_cast<double>(new_examples));
      commit.messages = std::move(messages);
    }
    double loss = 0.0;
    for (const std::string& name : names) {
      loss += inside.at(name).loss * static_cast<double>(inside.at(name).part.examples);
    }
    line = {.round = commit.round,
            .time = now + clock_offset,
            .seconds = open_for,
            .loss = loss / static_cast<double>(new_examples),
            .lr = commit.lr,
            .ratio = commit.ratio,
            .examples = examples + new_examples,
            .members = names.size(),
            .bytes_up = bytes_up,
            .bytes_down = bytes_down};
    Transaction transaction(journal.database());
    journal.add_commit(line, to_bytes(commit), received);
    for (const std::string& name : names) {
      MemberLine& of = guests.at(name).line;
      of.rounds = rounds.members().at(name);
      of.examples += inside.at(name).part.examples;
      journal.save_member(name, of);
    }
    // The leases that go with the answers are written with the commit, at no cost of their own.
    if (leases) {
      for (const std::string& name : names) {
        lease_for(name, rounds.members().at(name).sequence + 1, /*keep=*/false);
      }
      write_leases();
    }
    transaction.commit();
  } catch (const std::exception& error) {
    if (selected) selector->restore();
    std::swap(rounds, after);
    failure = error.what();
    throw;
  }
  for (const std::string& name : names) guests.at(name).kept = guests.at(name).line.saved;
  if (selected) selector->commit();
  replica->apply(commit);
  examples = line.examples;
  typical_norms.push_back(typical);
  if (typical_norms.size() > kTypicalNorms) typical_norms.pop_front();
  news = true;
  inside.clear();
  const std::uint64_t round = commit.round;
  if (plan.evaluate_every > 0 && round % plan.evaluate_every == 0) evaluation_due = round;
  if (watcher.committed) watcher.committed(line);
  if (round % plan.snapshot_every == 0) write_snapshot();
}

void Hub::Impl::close_all_due(double now) {
  const auto due = [&] { return failure.empty() && has_parameters && !done && rounds.is_due(now); };
  do {
    while (due()) {
      close(now);
      finish_if_done(now);
    }
    finish_if_done(now);
    // With a thousand members, asking for each of them at each message would be most of the work.
    if (!std::exchange(news, false)) continue;
    answer_waiting(now, /*all=*/false);  // who is to evaluate now is not waited for any more
  } while (due());
}

void Hub::Impl::ask_for_last_evaluation() {
  const auto evaluated = journal.evaluations();
  if (evaluated.empty() || evaluated.back().round < rounds.closed()) {
    evaluation_due = rounds.closed();
  }
}

void Hub::Impl::finish_if_done(double now) {
  if (done || !has_parameters) return;
  const bool by_rounds = plan.rounds > 0 && rounds.closed() >= plan.rounds;
  const bool by_data = leases ? leases->finished()
                              : plan.rounds == 0 && plan.positions > 0 && epoch() >= plan.epochs;
  if (!by_rounds && !by_data) return;
  write_snapshot();
  journal.set_fact("finished", "yes");
  done = true;
  news = true;
  ask_for_last_evaluation();
  // Nothing is committed any more: who has sent something keeps it.
  rounds.finish();
  inside.clear();
  note("", fmt::format("finished after {} rounds", rounds.closed()), now);
}

double Hub::Impl::lost_members(double now) {
  if (!started) started = now;
  // Not at each message: with a thousand members that takes longer than the rest.
  if (now < look_for_lost) return look_for_lost;
  double next = now + std::min(60.0, 0.1 * options.lost_after);
  for (auto& [name, guest] : guests) {
    if (!leases || !leases->has_any(name)) continue;
    const bool silent = !rounds.members().contains(name) || !rounds.members().at(name).active;
    if (!silent) continue;
    // A hub that was down has heard nobody: that is not the members' silence.
    const double since = std::max(guest.seen, *started);
    if (now - since < options.lost_after) {
      next = std::min(next, since + options.lost_after);
      continue;
    }
    // What it did and has not saved is done by others: it must not come in any more.
    leases->release_after(name, guest.line.saved);
    news = true;
    guest.line.revoked_after = guest.line.saved;
    sessions.erase(guest.session);
    guest.session.clear();
    keep_leases(name);
    note(name, "was silent for long: others do what it has not saved", now);
  }
  return look_for_lost = next;
}

void Hub::Impl::write_snapshot() {
  const std::uint64_t round = replica->round();
  const std::string name = snapshot_name(round);
  std::vector<std::span<const std::byte>> extra;
  Bytes rest;
  if (residual) {
    for (std::size_t t = 0; t < residual->tensors().size(); ++t) {
      const auto bytes = std::as_bytes(std::as_const(*residual).residual(t));
      rest.insert(rest.end(), bytes.begin(), bytes.end());
    }
    extra.emplace_back(rest);
  }
  AtomicFile file(folder / name);
  file.write(replica->snapshot({}, extra));
  file.commit();
  Transaction transaction(journal.database());
  journal.add_snapshot(round, name);
  const auto all = journal.snapshots();
  for (std::size_t i = kSnapshots; i < all.size(); ++i) {
    std::error_code error;
    std::filesystem::remove(folder / all[i].second, error);
    journal.drop_snapshot(all[i].first);
  }
  const auto kept = journal.snapshots();
  if (kept.size() >= kSnapshots) journal.drop_commits(kept.back().first);
  transaction.commit();
}

}  // namespace dgc::hub
