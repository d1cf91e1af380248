#include "hub/local_hub.h"

#include <ctime>

#include "dgc/error.h"

namespace dgc::hub {
namespace {

/// A request that has no answer by then is sent again.
constexpr double kPatience = 5.0;
/// Between two attempts.
constexpr double kPause = 0.5;

double processor_seconds() {
  std::timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

template <typename Work>
void LocalHub::at_hub(Work&& work) {
  const double before = processor_seconds();
  work();
  hub_seconds_ += processor_seconds() - before;
}

LocalHub::LocalHub(std::filesystem::path folder, Options options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  std::filesystem::create_directories(folder_ / "hub");
  const Journal first(folder_ / "hub" / kJournalFile, /*create=*/true);
  start_hub();
}

LocalHub::~LocalHub() = default;

Member* LocalHub::member(const std::string& name) noexcept {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.member.get();
}

void LocalHub::at(double time, std::function<void()> what) {
  events_.push({std::max(time, now_), ++order_, std::move(what)});
}

void LocalHub::start_hub() {
  journal_ = std::make_unique<Journal>(folder_ / "hub" / kJournalFile, /*create=*/false);
  hub_ = std::make_unique<Hub>(folder_ / "hub", *journal_, options_.hub, options_.plan,
                               options_.watcher);
  ++hub_life_;
  tick();
}

void LocalHub::kill_hub() {
  hub_.reset();
  journal_.reset();
  ++hub_life_;
}

void LocalHub::tick() {
  if (!hub_) return;
  double next = 0.0;
  at_hub([&] { next = hub_->tick(now_); });
  const std::uint64_t number = ++ticks_;
  at(next, [this, number, life = hub_life_] {
    if (life == hub_life_ && number == ticks_) tick();
  });
}

void LocalHub::join(const std::string& name, Worker worker) {
  Place& place = places_[name];
  ++place.life;
  place.worker = std::move(worker);
  if (!tokens_.contains(name)) tokens_[name] = journal_->add_token(name, Right::work, now_);
  place.member = std::make_unique<Member>(
      options_.model, options_.buffers,
      MemberOptions{.terms = options_.hub.terms, .run = "local", .folder = folder_ / name});
  place.member->set_data(options_.positions, "local", place.worker.evaluates);
  if (place.worker.begin) place.worker.begin(*place.member);
  at(now_, [this, name, life = place.life] {
    if (places_.at(name).life == life) go_on(name);
  });
}

void LocalHub::leave(const std::string& name) {
  if (Member* const found = member(name)) found->leave();
}

void LocalHub::kill(const std::string& name) {
  Place& place = places_.at(name);
  if (!place.member) return;
  ++place.life;
  const std::string session = place.member->session();
  place.member.reset();
  if (now_ < place.cut_until) return;  // nobody sees the connection end
  at(now_ + place.worker.link.delay.count(),
     [this, session, waiting = place.waiting, life = hub_life_] {
       if (!hub_ || life != hub_life_) return;
       at_hub([&] {
         hub_->give_up(waiting);
         hub_->connection_lost(session, now_);
       });
     });
}

void LocalHub::cut(const std::string& name, double seconds) {
  places_.at(name).cut_until = now_ + seconds;
}

void LocalHub::stall(const std::string& name, double seconds) {
  places_.at(name).stalled_until = now_ + seconds;
}

double LocalHub::travel(const Place& place, std::size_t bytes) const {
  return place.worker.link.delay.count() +
         static_cast<double>(bytes) / place.worker.link.bytes_per_second;
}

void LocalHub::go_on(const std::string& name) {
  Place& place = places_.at(name);
  const std::uint64_t life = place.life;
  if (now_ < place.stalled_until) {
    at(place.stalled_until, [this, name, life] {
      if (places_.at(name).life == life) go_on(name);
    });
    return;
  }
  Member& member = *place.member;
  switch (member.todo()) {
    case Todo::end:
      place.member.reset();
      ++place.life;
      return;
    case Todo::evaluate:
      member.evaluated(1.0, {{"metric", static_cast<double>(member.round())}});
      return go_on(name);
    case Todo::compute: {
      const double seconds = place.worker.seconds_each * static_cast<double>(member.lease().count);
      at(now_ + seconds, [this, name, life, seconds] {
        Place& here = places_.at(name);
        if (here.life != life) return;
        if (here.member->todo() == Todo::compute) {
          Contribution contribution = here.worker.compute(*here.member);
          contribution.seconds = seconds;
          here.member->contribute(contribution);
        }
        go_on(name);
      });
      return;
    }
    case Todo::ask:
      place.ask = member.next_request(2.0 * place.worker.link.delay.count());
      return send(name);
  }
}

void LocalHub::send(const std::string& name) {
  Place& place = places_.at(name);
  const std::uint64_t life = place.life;
  const std::uint64_t number = ++place.asked;
  const auto current = [this, name, life, number] {
    const Place& here = places_.at(name);
    return here.life == life && here.asked == number;
  };
  const auto again = [this, name, current] {
    if (current()) send(name);
  };
  if (!hub_ || now_ < place.cut_until) return at(now_ + kPause, again);
  at(now_ + kPatience + options_.hub.poll, again);
  at(now_ + travel(place, place.ask.body.size()), [this, name, current, again] {
    Place& from = places_.at(name);
    // What is on the way arrives, though its sender may have died meanwhile.
    if (now_ < from.cut_until) return;
    if (!hub_) return at(now_ + kPause, again);
    Request request{.method = from.ask.method,
                    .path = from.ask.path,
                    .query = {},
                    .token = tokens_.at(name),
                    .origin = "local",
                    .body = from.ask.body};
    if (const std::size_t mark = request.path.find('?'); mark != std::string::npos) {
      request.query = request.path.substr(mark + 1);
      request.path.resize(mark);
    }
    const auto respond = [this, name, current](Response response) {
      const Place& to = places_.at(name);
      at(now_ + travel(to, response.body->size()), [this, name, current, response] {
        Place& here = places_.at(name);
        if (!current() || now_ < here.cut_until) return;
        ++here.asked;
        here.member->take(*response.body);
        go_on(name);
      });
    };
    at_hub([&] { from.waiting = hub_->handle(request, now_, respond); });
    tick();
  });
}

bool LocalHub::run(double seconds, const std::function<bool()>& done) {
  const double until = now_ + seconds;
  while (!done()) {
    if (events_.empty() || events_.top().time > until) {
      now_ = until;
      return false;
    }
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    event.what();
  }
  return true;
}

}  // namespace dgc::hub
