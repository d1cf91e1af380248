// The hub on real sockets: what strangers, members with mistakes and broken HTTP get.
#include <fmt/format.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>

#include "dgc/version.h"
#include "hub_on_network.h"

namespace dgc {
namespace {

using test::Answer;
using test::HubOnNetwork;
using test::Line;

const std::vector<TensorSpec> kModel = {TensorSpec::of("w", {1000, 1600})};

nlohmann::json join_head() {
  return {{"protocol", hub::kProtocol},
          {"version", DGC_VERSION},
          {"positions", 100},
          {"data", "d"},
          {"model", hub::to_json(kModel)},
          {"buffers", nlohmann::json::array()},
          {"sequence", 0},
          {"alive", false}};
}

/// Joins, and gives the parameters. Returns the session.
std::string joined(HubOnNetwork& hub, Line& line, const std::string& name) {
  line.post("/v1/join", hub.tokens[name], hub::write_packet(join_head()));
  const Answer answer = line.answer();
  EXPECT_EQ(answer.status, 200) << answer.body;
  const nlohmann::json head = answer.head();
  if (head["needs_parameters"]) {
    const hub::Bytes first = hub::Replica(kModel, {}, hub.terms).snapshot();
    const std::span<const std::byte> blobs[] = {first};
    line.post("/v1/initial", hub.tokens[name],
              hub::write_packet({{"session", head["session"]}}, blobs));
    const Answer taken = line.answer();
    EXPECT_EQ(taken.status, 200) << taken.body;
    EXPECT_TRUE(taken.head()["taken"]);
  }
  return head["session"];
}

hub::Bytes wait_request(const std::string& session, std::uint64_t have = 0) {
  return hub::write_packet(
      {{"session", session}, {"sequence", 0}, {"have", have}, {"saved", 0}, {"rtt", 0.1}});
}

nlohmann::json status(HubOnNetwork& hub) {
  Line line(hub.port);
  line.get("/v1/status", hub.tokens["reader"]);
  return nlohmann::json::parse(line.answer().body);
}

/// Asks until it is so.
void until(HubOnNetwork& hub, const std::function<bool(const nlohmann::json&)>& is_so) {
  for (int i = 0; i < 1000; ++i) {
    if (is_so(status(hub))) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL() << "it never was so";
}

TEST(Server, ThePageNeedsNoTokenAndAllowsNothingElse) {
  HubOnNetwork hub;
  Line line(hub.port);
  line.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  const Answer page = line.answer();
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.fields.at("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.fields.at("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(page.fields.at("Referrer-Policy"), "no-referrer");
  const std::string policy = page.fields.at("Content-Security-Policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(page.body.find("http://www.w3.org/2000/svg") == std::string::npos, false);
  EXPECT_EQ(page.body.find("https://"), std::string::npos);
}

TEST(Server, TokensAreChecked) {
  HubOnNetwork hub({.server = {.patience = {.refusal = 0.01}}});
  for (const std::string token : {"", "a.wrong", "nobody.0123", "a", "....", "\x01\xff"}) {
    Line line(hub.port);
    line.get("/v1/status", token);
    EXPECT_EQ(line.answer().status, token == "\x01\xff" ? 0 : 401) << token;
    EXPECT_TRUE(line.ended());
  }
  Line none(hub.port);
  none.send("GET /v1/status HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(none.answer().status, 401);
  Line good(hub.port);
  good.get("/v1/status", hub.tokens["reader"]);
  const Answer answer = good.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(nlohmann::json::parse(answer.body)["refused"], 7);
  good.get("/metrics", hub.tokens["a"]);  // who works may look
  EXPECT_EQ(good.answer().status, 200);
  hub.end();
  hub.journal.revoke_token("reader");
}

TEST(Server, RightsAreChecked) {
  HubOnNetwork hub;
  const auto ask = [&](const std::string& path, const std::string& name, bool post) {
    Line line(hub.port);
    post ? line.post(path, hub.tokens[name], hub::write_packet(join_head()))
         : line.get(path, hub.tokens[name]);
    const Answer answer = line.answer();
    EXPECT_TRUE(answer.status < 400 || line.ended());
    return answer.status;
  };
  EXPECT_EQ(ask("/v1/join", "reader", true), 403);
  EXPECT_EQ(ask("/v1/round", "guest", true), 403);
  EXPECT_EQ(ask("/v1/snapshot", "reader", false), 403);
  EXPECT_EQ(ask("/v1/status", "guest", false), 403);
  EXPECT_EQ(ask("/v1/enroll", "a", true), 403);
  EXPECT_EQ(ask("/v1/run", "guest", false), 200);
}

TEST(Server, UnknownRequestsAndWrongMethods) {
  HubOnNetwork hub;
  for (const std::string path : {"/favicon.ico", "/v1", "/v1/", "/../etc/passwd", "/v1/status/"}) {
    Line line(hub.port);
    line.get(path, "");
    EXPECT_EQ(line.answer().status, 404) << path;
    EXPECT_TRUE(line.ended());
  }
  Line post(hub.port);
  post.post("/v1/status", hub.tokens["a"], {});
  const Answer answer = post.answer();
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.fields.at("Allow"), "GET");
  for (const std::string method : {"HEAD", "PUT", "DELETE", "OPTIONS", "FOO"}) {
    Line line(hub.port);
    line.send(method + " /v1/round HTTP/1.1\r\nHost: h\r\n\r\n");
    const Answer said = line.answer();
    EXPECT_EQ(said.status, 405) << method;
    EXPECT_EQ(said.fields.at("Allow"), "POST") << method;
  }
  Line page(hub.port);
  page.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(page.answer().fields.at("Allow"), "GET");
}

TEST(Server, LengthsAreBounded) {
  HubOnNetwork hub;
  const std::string head =
      "POST /v1/join HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + hub.tokens["a"] + "\r\n";
  for (const std::string length :
       {"Content-Length: 5000000", "Content-Length: 18446744073709551615",
        "Transfer-Encoding: chunked"}) {
    Line line(hub.port);
    line.send(head + length + "\r\n\r\n" + "5\r\nabcde\r\n0\r\n\r\n");
    EXPECT_EQ(line.answer().status, 413) << length;
    EXPECT_TRUE(line.ended());
  }
  Line broken(hub.port);
  broken.send(head + "Content-Length: 99999999999999999999\r\n\r\n");
  EXPECT_TRUE(broken.ended());
  Line before(hub.port);  // whoever has not joined has no model to send
  before.send("POST /v1/round HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + hub.tokens["a"] +
              "\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(before.answer().status, 413);
}

TEST(Server, MemoryIsBounded) {
  HubOnNetwork hub({.server = {.memory = 100'000}});
  Line line(hub.port);
  line.send("POST /v1/join HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + hub.tokens["a"] +
            "\r\nContent-Length: 200000\r\n\r\n");
  EXPECT_EQ(line.answer().status, 503);
  EXPECT_TRUE(line.ended());
  Line small(hub.port);
  small.post("/v1/join", hub.tokens["a"], hub::write_packet(join_head()));
  EXPECT_EQ(small.answer().status, 200);
}

TEST(Server, ARefusalIsReadThoughTheBodyWasNot) {
  HubOnNetwork hub({.server = {.patience = {.refusal = 0.01}}});
  Line line(hub.port);
  line.post("/v1/round", "a.revoked", hub::Bytes(20'000'000));
  EXPECT_EQ(line.answer().status, 401);
}

TEST(Server, ABodyThatNobodyReadIsNoRequest) {
  HubOnNetwork hub;
  const std::string inner =
      "GET /v1/run HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + hub.tokens["a"] + "\r\n\r\n";
  for (const std::string method : {"GET /v1/run", "GET /", "POST /v1/enroll", "PUT /v1/run"}) {
    Line line(hub.port);
    line.send(method + " HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + hub.tokens["a"] +
              "\r\nContent-Length: " + std::to_string(inner.size()) + "\r\n\r\n" + inner);
    EXPECT_NE(line.answer().status, 0) << method;
    EXPECT_TRUE(line.ended()) << method;
  }
}

TEST(Server, RequestsInOneGoAreAnsweredInOrder) {
  HubOnNetwork hub;
  Line line(hub.port);
  line.get("/v1/run", hub.tokens["a"]);
  line.get("/nothing", hub.tokens["a"]);
  line.get("/v1/status", hub.tokens["a"]);
  EXPECT_EQ(line.answer().status, 200);
  EXPECT_EQ(line.answer().status, 404);  // who is known may go on
  EXPECT_EQ(line.answer().status, 200);
}

TEST(Server, BrokenHttpEndsTheConnection) {
  HubOnNetwork hub;
  for (const std::string& text :
       {std::string("\x16\x03\x01\x02", 4) + std::string(60, '\0'), std::string("\r\n\r\nX"),
        std::string("GET / HTTP/9.9\r\n\r\n"), std::string("GET /\r\n\r\n"),
        "GET / HTTP/1.1\r\nA: " + std::string(9000, 'a') + "\r\n\r\n",
        "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n",
        std::string("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")}) {
    Line line(hub.port);
    line.send(text);
    EXPECT_TRUE(line.ended()) << text.substr(0, 60);
  }
  EXPECT_GE(status(hub)["refused"], 7);
}

TEST(Server, SlowSendersAreClosed) {
  const hub::ServerPatience hasty{.handshake = 0.2, .header = 0.2, .body = 0.2, .linger = 0.2};
  HubOnNetwork hub({.server = {.patience = hasty}});
  Line silent(hub.port);
  Line half(hub.port);
  half.send("GET /v1/status HTT");
  Line body(hub.port);
  body.send("POST /v1/join HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + hub.tokens["a"] +
            "\r\nContent-Length: 1000\r\n\r\nabc");
  EXPECT_TRUE(silent.ended());
  EXPECT_TRUE(half.ended());
  EXPECT_TRUE(body.ended());
  HubOnNetwork secure({.server = {.patience = hasty}, .tls = true});
  Line handshake(secure.port);
  EXPECT_TRUE(handshake.ended());
}

TEST(Server, StrangersDoNotKeepMembersOut) {
  HubOnNetwork hub({.server = {.strangers = 8}});
  Line member(hub.port);
  joined(hub, member, "a");
  std::vector<std::unique_ptr<Line>> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(std::make_unique<Line>(hub.port));
  for (const auto& stranger : strangers) stranger->send("GET / ");
  Line one_more(hub.port);
  EXPECT_TRUE(one_more.ended());
  member.get("/v1/run", hub.tokens["a"]);
  EXPECT_EQ(member.answer().status, 200);
  Line elsewhere(hub.port, "127.0.0.2");
  elsewhere.get("/v1/run", hub.tokens["b"]);
  EXPECT_EQ(elsewhere.answer().status, 200);
  strangers.clear();
  int came_in = 0;  // the hub sees in its own time that they have gone
  for (int i = 0; i < 1000 && came_in == 0; ++i) {
    Line again(hub.port);
    again.get("/v1/run", hub.tokens["b"]);
    came_in = again.answer().status;
  }
  EXPECT_EQ(came_in, 200);
}

TEST(Server, ConnectionsAreBounded) {
  HubOnNetwork hub({.server = {.connections = 4}});
  std::vector<std::unique_ptr<Line>> members;
  for (int i = 0; i < 4; ++i) {
    members.push_back(std::make_unique<Line>(hub.port));
    members.back()->get("/v1/run", hub.tokens["a"]);
    EXPECT_EQ(members.back()->answer().status, 200);
  }
  Line one_more(hub.port, "127.0.0.2");
  EXPECT_TRUE(one_more.ended());
  members.front()->get("/v1/run", hub.tokens["a"]);
  EXPECT_EQ(members.front()->answer().status, 200);
}

TEST(Server, MalformedPacketsAreNamedAndCounted) {
  HubOnNetwork hub;
  Line line(hub.port);
  nlohmann::json no_model = join_head();
  no_model.erase("model");
  nlohmann::json text_sequence = join_head();
  text_sequence["sequence"] = "1";
  hub::Bytes damaged = hub::write_packet(join_head());
  damaged[40] ^= std::byte{1};
  for (const hub::Bytes& body :
       {hub::Bytes(), hub::Bytes(100), damaged, hub::write_packet(no_model),
        hub::write_packet(text_sequence), hub::write_packet(nlohmann::json::object())}) {
    line.post("/v1/join", hub.tokens["a"], body);
    const Answer answer = line.answer();
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_TRUE(answer.head().contains("problem"));
  }
  EXPECT_EQ(status(hub)["refused"], 6);
}

TEST(Server, VersionsThatDoNotFitAreBothNamed) {
  HubOnNetwork hub;
  Line line(hub.port);
  nlohmann::json other = join_head();
  other["version"] = "9.8.7";
  line.post("/v1/join", hub.tokens["a"], hub::write_packet(other));
  const Answer answer = line.answer();
  EXPECT_EQ(answer.status, 409);
  const std::string problem = answer.head()["problem"];
  EXPECT_NE(problem.find("9.8.7"), std::string::npos) << problem;
  EXPECT_NE(problem.find(DGC_VERSION), std::string::npos) << problem;
}

TEST(Server, ParametersWithMomentumFit) {
  HubOnNetwork hub({.terms = {.momentum = 0.9f, .weight_decay = 1e-4f}});
  Line line(hub.port);
  joined(hub, line, "a");
  line.get("/v1/snapshot", hub.tokens["a"]);
  const Answer snapshot = line.answer();
  EXPECT_EQ(snapshot.status, 200);
  EXPECT_GT(snapshot.body.size(), 8u * 1'600'000);
  EXPECT_GE(status(hub)["bytes_down"], snapshot.body.size());
}

/// A member that speaks over connections that tests open and close.
class Speaker {
 public:
  Speaker(HubOnNetwork& hub, const std::string& name)
      : member(kModel, {}, {.terms = hub.terms, .run = "r", .folder = hub.folder.path() / name}),
        token_(hub.tokens[name]) {
    member.set_data(100, "d");
  }
  void send(Line& line) {
    const hub::Ask ask = member.next_request(0.1);
    ask.method == "GET" ? line.get(ask.path, token_) : line.post(ask.path, token_, ask.body);
  }
  void take(Line& line) {
    const Answer answer = line.answer();
    EXPECT_EQ(answer.status, 200) << answer.body;
    member.take(answer.bytes());
  }
  /// Until there is something to compute.
  void begin(Line& line) {
    for (int i = 0; i < 10 && member.todo() == hub::Todo::ask; ++i) {
      send(line);
      take(line);
    }
    ASSERT_EQ(member.todo(), hub::Todo::compute);
  }
  void compute() {
    const std::vector<float> gradient(kModel[0].elements(), 0.5f);
    member.contribute({.gradients = {{0, gradient}},
                       .examples = static_cast<std::uint64_t>(member.lease().count)});
  }
  hub::Member member;

 private:
  std::string token_;
};

TEST(Server, AConnectionThatEndsTellsTheRound) {
  HubOnNetwork hub;
  auto line = std::make_unique<Line>(hub.port);
  const std::string session = joined(hub, *line, "a");
  // Sequence 0 with nothing new waits for nothing: it is told of its lease at once.
  line->post("/v1/wait", hub.tokens["a"], wait_request(session));
  const nlohmann::json told = line->answer().head();
  EXPECT_EQ(told["lease"]["count"], 4);
  EXPECT_EQ(status(hub)["active"], 1);
  line.reset();
  until(hub, [](const nlohmann::json& now) { return now["active"] == 0; });
}

TEST(Server, AGiverOfParametersThatEndsBeforeTheyAreThereIsReplaced) {
  HubOnNetwork hub;
  Line of_a(hub.port), of_b(hub.port);
  Speaker a(hub, "a"), b(hub, "b");
  a.send(of_a);
  a.take(of_a);
  b.send(of_b);
  b.take(of_b);
  b.send(of_b);  // waits for the snapshot that a gives
  const hub::Ask ask = a.member.next_request(0.1);
  EXPECT_EQ(ask.path, "/v1/initial");
  of_a.send("POST /v1/initial HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + hub.tokens["a"] +
            "\r\nContent-Length: " + std::to_string(ask.body.size()) + "\r\n\r\nDGCH");
  of_a.close();
  until(hub, [](const nlohmann::json& now) {
    return std::ranges::any_of(
        now["events"], [](const auto& event) { return event["what"] == "connection lost"; });
  });
  EXPECT_EQ(of_b.answer().status, 409);
}

TEST(Server, KernelsLookAfterConnectionsThatAreSilent) {
  HubOnNetwork hub;
  Line line(hub.port);
  line.get("/v1/run", hub.tokens["a"]);
  EXPECT_EQ(line.answer().status, 200);
  // Of the hub's end: 2 is the timer that asks whether the other one is there, and when it ends. It
  // begins when the answer has been acknowledged.
  const std::string mine = fmt::format(" 0100007F:{:04X} 0100007F:", hub.port);
  unsigned kind = 0, left = 0;
  for (int i = 0; i < 1000 && kind != 2; ++i) {
    std::ifstream all("/proc/net/tcp");
    bool found = false;
    for (std::string text; std::getline(all, text);) {
      const std::size_t at = text.find(mine);
      if (at == text.npos) continue;
      found = std::sscanf(text.c_str() + at, "%*s %*s 01 %*s %x:%x", &kind, &left) == 2;
    }
    if (!found) GTEST_SKIP() << "this system does not show its connections";
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(kind, 2u);
  EXPECT_LE(left, 61u * static_cast<unsigned>(::sysconf(_SC_CLK_TCK)));
}

TEST(Journal, ACurveHasSoManyPointsAndTheLast) {
  const TemporaryFolder folder;
  hub::Journal journal(folder.path() / "j", true);
  for (std::uint64_t round = 1; round <= 59; ++round) {
    journal.add_commit({.round = round}, {}, {});
    const auto lines = journal.commits(10);
    EXPECT_LE(lines.size(), 11u) << round;
    EXPECT_EQ(lines.back().round, round);
  }
}

TEST(Server, WhatTheHubAcknowledgesIsOnItsDisk) {
  HubOnNetwork hub;
  Line line(hub.port);
  const std::string session = joined(hub, line, "a");
  line.post("/v1/wait", hub.tokens["a"],
            hub::write_packet(
                {{"session", session}, {"sequence", 0}, {"have", 0}, {"saved", 3}, {"rtt", 0.1}}));
  EXPECT_EQ(line.answer().head()["saved"], 3);
  hub.end();
  EXPECT_EQ(hub.journal.members().at("a").saved, 3u);
}

TEST(Server, OnlyWhoWasAskedToEvaluates) {
  HubOnNetwork hub;
  Line line(hub.port);
  const nlohmann::json evaluation = {
      {"session", joined(hub, line, "a")},
      {"round", 0},
      {"loss", 1.0},
      {"metrics", nlohmann::json::array({nlohmann::json::array({"accuracy", 50.0})})}};
  line.post("/v1/evaluation", hub.tokens["a"], hub::write_packet(evaluation));
  EXPECT_EQ(line.answer().head()["taken"], false);
  EXPECT_EQ(status(hub)["evaluations"].size(), 0u);
}

TEST(Server, AnOldConnectionThatEndsDoesNotEndItsMember) {
  const auto begun = std::chrono::system_clock::now();
  HubOnNetwork hub;
  Line of_a(hub.port), of_b(hub.port);
  auto before = std::make_unique<Line>(hub.port);
  Speaker a(hub, "a"), b(hub, "b");
  a.begin(*before);
  b.begin(of_b);
  a.compute();
  a.send(*before);  // waits for b
  until(hub, [](const nlohmann::json& now) { return now["inside"] == 1; });
  const std::uint64_t bytes = status(hub)["bytes_up"];
  a.send(of_a);  // the same again, over another connection
  until(hub, [&](const nlohmann::json& now) { return now["bytes_up"] > bytes; });
  before.reset();
  for (int i = 0; i < 20; ++i) status(hub);  // the hub sees the end before that of these
  b.compute();
  b.send(of_b);
  a.take(of_a);
  b.take(of_b);
  EXPECT_EQ(a.member.round(), 1u);
  EXPECT_EQ(b.member.round(), 1u);
  EXPECT_EQ(a.member.replica().hash(), b.member.replica().hash());
  EXPECT_EQ(a.member.last_outcome(), hub::Outcome::committed);
  // Times are those of the wall, and a round is not older than its members.
  until(hub, [](const nlohmann::json& now) { return !now["curve"].empty(); });
  const nlohmann::json round = status(hub)["curve"].back();
  const auto now = std::chrono::system_clock::now();
  EXPECT_NEAR(round[1].get<double>(), std::chrono::duration<double>(now.time_since_epoch()).count(),
              3600.0);
  EXPECT_LE(round[4].get<double>(), std::chrono::duration<double>(now - begun).count() + 1.0);
  hub.end();
  for (const auto& event : hub.journal.events(100)) EXPECT_NE(event.what, "connection lost");
}

TEST(Server, ChangedRequestsDisturbNobody) {
  HubOnNetwork hub({.server = {.patience = {.refusal = 0.0}}});
  Line member(hub.port);
  const std::string session = joined(hub, member, "a");
  std::vector<std::string> originals;
  for (const auto& [path, body] :
       {std::pair("/v1/join", hub::write_packet(join_head())),
        std::pair("/v1/wait", wait_request("0")), std::pair("/v1/round", wait_request("0")),
        std::pair("/v1/enroll", hub::write_packet({{"name", "n"}}))}) {
    originals.push_back("POST " + std::string(path) +
                        " HTTP/1.1\r\nHost: h\r\nAuthorization: " + "Bearer " + hub.tokens["b"] +
                        "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                        std::string(reinterpret_cast<const char*>(body.data()), body.size()));
  }
  originals.push_back("GET /v1/commits?after=0 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " +
                      hub.tokens["b"] + "\r\n\r\n");
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return random() % n; };
  int answered = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text = originals[below(originals.size())];
    for (std::size_t n = 1 + below(6); n > 0; --n) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, 1 + below(8));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(40)));
          break;
        default:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      }
    }
    Line line(hub.port);
    line.send(text);
    line.finish();
    answered += line.rest().starts_with("HTTP/1.1 ") ? 1 : 0;
    if (i % 500 == 0) {
      member.get("/v1/run", hub.tokens["a"]);
      EXPECT_EQ(member.answer().status, 200);
    }
  }
  EXPECT_GT(answered, 500);
  member.post("/v1/wait", hub.tokens["a"], wait_request(session));
  EXPECT_EQ(member.answer().status, 200);
}

/// TLS by OpenSSL itself.
class SecureLine {
 public:
  SecureLine(std::uint16_t port, int newest = TLS1_3_VERSION) : line(port) {
    context_ = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context_, newest);
    ssl = SSL_new(context_);
    SSL_set_fd(ssl, line.handle());
    works = SSL_connect(ssl) == 1;
  }
  ~SecureLine() {
    SSL_free(ssl);
    SSL_CTX_free(context_);
  }
  SecureLine(const SecureLine&) = delete;
  SecureLine& operator=(const SecureLine&) = delete;
  std::string ask(const std::string& request) const {
    std::string all;
    if (SSL_write(ssl, request.data(), static_cast<int>(request.size())) <= 0) return all;
    char some[4096];
    for (int got; (got = SSL_read(ssl, some, sizeof some)) > 0;) {
      all.append(some, static_cast<std::size_t>(got));
      if (all.find("\r\n\r\n") != std::string::npos) break;
    }
    return all;
  }
  Line line;
  SSL* ssl = nullptr;
  bool works = false;

 private:
  SSL_CTX* context_ = nullptr;
};

TEST(Server, TlsIsOfVersion13AndHasThePin) {
  HubOnNetwork hub({.server = {.patience = {.refusal = 0.01}}, .tls = true});
  const SecureLine line(hub.port);
  ASSERT_TRUE(line.works);
  EXPECT_EQ(SSL_version(line.ssl), TLS1_3_VERSION);
  EXPECT_EQ(hub::pin_of_peer(line.ssl), hub::pin_of(hub.folder.path() / "certificate.pem"));
  const std::string run = line.ask("GET /v1/run HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " +
                                   hub.tokens["a"] + "\r\n\r\n");
  EXPECT_EQ(run.substr(0, 12), "HTTP/1.1 200");
  const SecureLine stranger(hub.port);
  EXPECT_EQ(stranger.ask("GET /v1/run HTTP/1.1\r\nHost: h\r\n\r\n").substr(0, 12), "HTTP/1.1 401");
  const SecureLine sender(hub.port);  // the refusal arrives though its body was not read
  EXPECT_EQ(sender
                .ask("POST /v1/round HTTP/1.1\r\nHost: h\r\nContent-Length: 8000000\r\n\r\n" +
                     std::string(8'000'000, 'x'))
                .substr(0, 12),
            "HTTP/1.1 401");
  const SecureLine old(hub.port, TLS1_2_VERSION);
  EXPECT_FALSE(old.works);
  Line plain(hub.port);
  plain.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(plain.answer().status, 0);
}

}  // namespace
}  // namespace dgc
