// Requests that no member of ours sends: a hundred thousand mutations by somebody with a good token
// and by strangers, while two members go on training.
#include <xxhash.h>

#include <cstring>
#include <random>

#include "support/helpers.h"
#include "toy.h"

namespace dgc {
namespace {

using hub::Bytes;
using hub::Request;
using test::Toy;
using test::ToyPlan;

void fix_checksum(Bytes& bytes) {
  if (bytes.size() < 8) return;
  const std::uint64_t hash = XXH64(bytes.data(), bytes.size() - 8, 0);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash, sizeof hash);
}

class Attacker {
 public:
  Attacker(Toy& toy, std::uint32_t seed) : toy_(toy), random_(seed) {
    token_ = toy.journal->add_token("attacker", hub::Right::work, 0.0);
    other_tokens_ = {toy.journal->add_token("reader", hub::Right::read, 0.0),
                     toy.journal->add_token("invite", hub::Right::invite, 0.0),
                     "attacker." + std::string(32, '0'),
                     "",
                     "a",
                     token_ + "0",
                     std::string(10'000, '.')};
    start();
  }

  /// As a member for a while, to have good requests that can be made worse.
  void behave(int steps) {
    for (int i = 0; i < steps; ++i) {
      if (member_->todo() == hub::Todo::compute) {
        const std::vector<float> zeros(test::kToySize, 0.5f);
        hub::Contribution contribution{
            .examples = static_cast<std::uint64_t>(member_->lease().count), .loss = 1.0};
        std::size_t at = 0;
        for (std::size_t t = 0; t < test::kToyModel.size(); ++t) {
          const std::size_t size = test::kToyModel[t].elements();
          contribution.gradients.push_back({t, std::span<const float>(zeros).subspan(at, size)});
          at += size;
        }
        member_->contribute(contribution);
        continue;
      }
      if (member_->todo() == hub::Todo::evaluate) {
        member_->evaluated(1.0, {{"accuracy", 0.5}});
        continue;
      }
      if (member_->todo() == hub::Todo::end) return;
      const hub::Ask ask = member_->next_request(0.01);
      Request request = request_of(ask);
      good_.push_back(request);
      if (good_.size() > 60) good_.erase(good_.begin() + 10);
      std::optional<Bytes> answer;
      const std::uint64_t waits =
          hub().handle(request, toy_.local->now(),
                       [&](const hub::Response& response) { answer = *response.body; });
      hub().give_up(waits);
      if (!answer) continue;
      try {
        member_->take(*answer);
      } catch (const Error& error) {
        // Requests that were made worse have joined since, as another process would.
        ASSERT_EQ(error.code(), ErrorCode::wrong_order) << error.what();
        start();
      }
    }
  }

  void attack() {
    Request request = good_[below(good_.size())];
    switch (below(12)) {
      case 0:
        request.token = other_tokens_[below(other_tokens_.size())];
        break;
      case 1:
        flip(request.body, 1 + below(4));
        break;
      case 2:
        if (!request.body.empty()) request.body.resize(below(request.body.size()));
        if (below(2) == 0) fix_checksum(request.body);
        break;
      case 3:
        request.path = good_[below(good_.size())].path;
        break;
      case 4:
        request.query = queries_[below(std::size(queries_))];
        request.path = below(2) == 0 ? "/v1/commits" : request.path;
        request.method = "GET";
        break;
      case 5:
        flip(request.body, 1 + below(3));
        fix_checksum(request.body);
        break;
      default:
        change_packet(request);
    }
    Request head = request;
    head.body.clear();
    hub().body_limit(head);
    bool answered = false;
    const std::uint64_t waits =
        hub().handle(request, toy_.local->now(), [&](const hub::Response& response) {
          answered = true;
          ASSERT_NE(response.body, nullptr);
          statuses[response.status]++;
        });
    ASSERT_NE(answered, waits != 0) << "an answer now or later";
    if (waits != 0) hub().give_up(waits);
  }

  std::map<int, int> statuses;

 private:
  hub::Hub& hub() { return *toy_.local->hub(); }
  void start() {
    member_.emplace(
        test::kToyModel, std::vector<TensorSpec>{},
        hub::MemberOptions{
            .terms = toy_.plan.terms, .run = "local", .folder = toy_.folder() / "attacker"});
    member_->set_data(toy_.plan.positions, "local");
  }
  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }
  void flip(Bytes& bytes, std::size_t times) {
    for (std::size_t i = 0; i < times && !bytes.empty(); ++i) {
      bytes[below(bytes.size())] ^= static_cast<std::byte>(1u << below(8));
    }
  }
  Request request_of(const hub::Ask& ask) const {
    Request request{.method = ask.method,
                    .path = ask.path,
                    .query = {},
                    .token = token_,
                    .origin = "203.0.113.7",
                    .body = ask.body};
    if (const std::size_t mark = request.path.find('?'); mark != std::string::npos) {
      request.query = request.path.substr(mark + 1);
      request.path.resize(mark);
    }
    return request;
  }

  /// Another value in its JSON, or other bytes beside it, with a checksum that fits.
  void change_packet(Request& request) {
    if (request.body.empty()) return;
    const hub::Packet packet = hub::read_packet(request.body);
    nlohmann::json head = packet.head;
    std::vector<Bytes> blobs;
    for (const auto& blob : packet.blobs) blobs.emplace_back(blob.begin(), blob.end());
    if (below(3) != 0 || blobs.empty()) {
      for (std::size_t times = 1 + below(2); times > 0; --times) change(head);
    } else {
      Bytes& blob = blobs[below(blobs.size())];
      if (below(4) == 0 && !blob.empty()) blob.resize(below(blob.size()));
      flip(blob, 1 + below(3));
      fix_checksum(blob);  // of a message inside
      if (below(8) == 0) blobs.push_back(blob);
    }
    // A session that is good, more often than not: else all ends there.
    if (head.is_object() && head.contains("session") && below(8) != 0) {
      head["session"] = member_->session();
    }
    const std::vector<std::span<const std::byte>> spans(blobs.begin(), blobs.end());
    request.body = hub::write_packet(head, spans);
  }
  void change(nlohmann::json& json) {
    if (json.is_structured() && !json.empty() && below(12) != 0) {
      auto entry = json.begin();
      std::advance(entry, static_cast<std::ptrdiff_t>(below(json.size())));
      if (below(10) == 0) {
        json.erase(entry);
      } else {
        change(*entry);
      }
      return;
    }
    json = values_[below(values_.size())];
  }

  Toy& toy_;
  std::mt19937 random_;
  std::optional<hub::Member> member_;
  std::string token_;
  std::vector<std::string> other_tokens_;
  std::vector<Request> good_;
  static constexpr const char* queries_[] = {"",
                                             "after=",
                                             "after=0",
                                             "after=18446744073709551615",
                                             "after=18446744073709551614",
                                             "after=-1",
                                             "after=x",
                                             "after=9223372036854775807",
                                             "after=1&after=2",
                                             "before=3",
                                             "after=1e99",
                                             "after=5x"};
  const std::vector<nlohmann::json> values_ = {
      0,
      1,
      2,
      3,
      17,
      -1,
      0.5,
      1e300,
      -1e300,
      1ull << 31,
      1ull << 32,
      1ull << 61,
      (1ull << 62) - 1,
      1ull << 62,
      1ull << 63,
      UINT64_MAX,
      UINT64_MAX - 1,
      INT64_MIN,
      true,
      false,
      nullptr,
      "",
      "a",
      "attacker",
      "0.2.0",
      std::string(5000, 'x'),
      nlohmann::json::array(),
      nlohmann::json::object(),
      nlohmann::json::array({1, 2, UINT64_MAX}),
      nlohmann::json::array({nlohmann::json::array({"m", 1e300})})};
};

TEST(HubHostile, MembersTrainOnThroughMutatedRequests) {
  const int requests = test::repeats(100'000, 10'000);
  for (const hub::Down down : {hub::Down::forward, hub::Down::select}) {
    ToyPlan plan{.epochs = 4.0};
    plan.terms.down = down;
    plan.norm_bound = 2.0;
    plan.lost_after = 5.0;
    Toy toy(plan);
    for (const char* name : {"a", "b"}) toy.join(name);
    ASSERT_TRUE(toy.run_rounds(1));
    Attacker attacker(toy, 7);
    attacker.behave(20);
    const std::size_t before = toy.lines.size();
    for (int i = 0; i < requests / 2; ++i) {
      attacker.attack();
      if (HasFatalFailure()) return;
      if (i % 500 == 0) toy.run(0.05);
      if (i % 5000 == 2500) attacker.behave(4);
    }
    EXPECT_GT(toy.lines.size(), before + 5);
    // Both kinds: refused, and let in.
    EXPECT_GT(attacker.statuses[400], requests / 10);
    EXPECT_GT(attacker.statuses[200], requests / 50);
    EXPECT_GT(attacker.statuses[401], 100);
    ASSERT_TRUE(toy.finish());
    toy.local->kill_hub();
    toy.local->start_hub();
    toy.check();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace dgc
