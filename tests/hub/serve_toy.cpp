// serve_toy FOLDER PORT RECIPE: a hub that serves a small run over plain HTTP on the loopback
// address, and members of it in the same process, as the lines of the standard input say. For tests
// of what the hub shows. Of the recipe "select" the hub selects what goes down. Goes on with the
// run that is in the folder. Says "port N" first; where the run is new, "token TEXT" to look at it,
// and "worker TEXT" to work.
//
//     join NAME ORIGIN    a member comes; it seems to be at ORIGIN
//     leave NAME          it goes as with Ctrl-C
//     drop NAME           its connection ends
//     stop NAME           it does nothing any more
//     refuse ORIGIN       somebody there sent what is no request
//     metric NAME         what members call what they measure
//     full                the disk fails
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <map>
#include <sstream>

#include "dgc/error.h"
#include "hub/member.h"
#include "hub/server.h"

namespace {

using namespace dgc;
using namespace dgc::hub;

const std::vector<TensorSpec> kModel = {TensorSpec::of("w", {64, 25}), TensorSpec::of("b", {7})};
constexpr std::int64_t kPositions = 4000;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Place {
 public:
  Place(std::string token, std::string origin, const Terms& terms, std::filesystem::path folder)
      : token_(std::move(token)),
        origin_(std::move(origin)),
        member(kModel, {}, {.terms = terms, .run = "toy", .folder = std::move(folder)}) {
    member.set_data(kPositions, "toy");
    for (const auto& span : member.replica().parameters()) std::fill(span.begin(), span.end(), 1.f);
  }

  /// At most one message, or until it waits.
  void go_on(Hub& hub, const std::string& metric) {
    for (int i = 0; i < 20 && !stopped; ++i) {
      if (answer_) {
        member.take(*std::exchange(answer_, nullptr));
        asked_ = false;
      }
      if (asked_ || member.todo() == Todo::end) return;
      if (member.todo() == Todo::evaluate) {
        const double done = static_cast<double>(member.round());
        member.evaluated(1.0 / (1.0 + 0.1 * done), {{metric, 90.0 - 40.0 / (1.0 + 0.2 * done)}});
      } else if (member.todo() == Todo::compute) {
        contribute();
        ask(hub);
        return;
      } else {
        ask(hub);
      }
    }
  }

 private:
  void ask(Hub& hub) {
    Ask next = member.next_request(0.0125);
    Request request{.method = next.method,
                    .path = next.path,
                    .query = {},
                    .token = token_,
                    .origin = origin_,
                    .body = std::move(next.body)};
    if (const auto mark = request.path.find('?'); mark != std::string::npos) {
      request.query = request.path.substr(mark + 1);
      request.path.resize(mark);
    }
    asked_ = true;
    waiting = hub.handle(request, seconds_now(), [this](const Response& said) {
      if (said.status == 503) {
        asked_ = false;  // it tries again
      } else {
        answer_ = said.body;
      }
    });
  }

  void contribute() {
    std::vector<std::vector<float>> values;
    Contribution mine{
        .examples = static_cast<std::uint64_t>(member.lease().count), .loss = 0.0, .seconds = 0.05};
    for (const auto& span : member.replica().parameters()) {
      values.emplace_back(span.begin(), span.end());
      for (const float w : span) mine.loss += static_cast<double>(w) * w / 1600.0;
    }
    for (std::size_t t = 0; t < values.size(); ++t) mine.gradients.push_back({t, values[t]});
    member.contribute(mine);
  }

  std::string token_, origin_;
  std::shared_ptr<const Bytes> answer_;
  bool asked_ = false;

 public:
  Member member;
  std::uint64_t waiting = 0;
  bool stopped = false;
};

class Toy {
 public:
  Toy(std::filesystem::path folder, const std::string& recipe)
      : folder_(std::move(folder)),
        is_new_(!std::filesystem::exists(folder_ / kJournalFile)),
        journal_(folder_ / kJournalFile, is_new_),
        options_(options(recipe)),
        hub_(folder_, journal_, options_, plan(), {}) {}

  int serve(std::uint16_t port) {
    Server server(hub_, {.address = "127.0.0.1", .port = port, .identity = std::nullopt});
    std::cout << "port " << server.port() << '\n';
    if (is_new_) {
      std::cout << "token " << journal_.add_token("looker", Right::read, 0.0) << "\nworker "
                << journal_.add_token("worker", Right::work, 0.0) << '\n';
    }
    std::cout.flush();
    bool over = false;
    server.run([&] {
      read_lines(over);
      for (auto& [name, place] : places_) place.go_on(hub_, metric_);
      return over;
    });
    return 0;
  }

 private:
  static HubOptions options(const std::string& recipe) {
    HubOptions options;
    options.terms = {.momentum = 0.0f, .values = ValueType::fp32, .save_every = 4};
    if (recipe == "select") options.terms.down = Down::select;
    options.rules.deadline = 1.0;
    options.settings = nlohmann::json{{"recipe", recipe}, {"model", "linear"}, {"lr", 0.02},
                                      {"ratio", 0.05},    {"seed", 1},         {"batch", 8}}
                           .dump();
    return options;
  }
  static HubPlan plan() {
    HubPlan plan;
    plan.epochs = 20.0;
    plan.rounds = 400;
    plan.batch = 8;
    plan.evaluate_every = 5;
    plan.snapshot_every = 10;
    plan.pace = [](const auto&) {
      return HubPlan::Pace{.lr = 0.02, .inner_lr = 0.0, .ratio = 0.05};
    };
    return plan;
  }

  void read_lines(bool& over) {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    while (poll(&input, 1, 0) > 0) {
      char some[4096];
      const ::ssize_t got = ::read(STDIN_FILENO, some, sizeof some);
      if (got <= 0) {
        over = true;
        return;
      }
      pending_.append(some, static_cast<std::size_t>(got));
    }
    for (std::size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      obey(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
  }

  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string what, name, rest;
    words >> what >> name;
    std::getline(words >> std::ws, rest);
    if (what == "join") {
      const std::string token = journal_.add_token(name, Right::work, 0.0);
      places_.erase(name);
      places_.try_emplace(name, token, rest, options_.terms, folder_ / ("member-" + name));
    } else if (what == "refuse") {
      hub_.count_refused(rest.empty() ? name : name + " " + rest, "no request", seconds_now());
    } else if (what == "metric") {
      metric_ = rest.empty() ? name : name + " " + rest;
    } else if (what == "full") {
      journal_.database().execute("PRAGMA query_only=ON");
    } else if (const auto place = places_.find(name); place != places_.end()) {
      if (what == "leave") place->second.member.leave();
      if (what == "drop") {
        hub_.give_up(place->second.waiting);
        hub_.connection_lost(place->second.member.session(), seconds_now());
      }
      if (what == "drop" || what == "stop") place->second.stopped = true;
    }
  }

  std::filesystem::path folder_;
  bool is_new_;
  Journal journal_;
  HubOptions options_;
  Hub hub_;
  std::string metric_ = "accuracy", pending_;
  std::map<std::string, Place> places_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: serve_toy FOLDER PORT RECIPE\n";
    return 2;
  }
  try {
    Toy toy(arguments[1], arguments[3]);
    return toy.serve(static_cast<std::uint16_t>(std::stoul(arguments[2])));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
