#include "hub/enrolment.h"

#include <fmt/format.h>

#include <cctype>

#include "base/file.h"
#include "dgc/error.h"

namespace dgc::hub {
namespace {

constexpr const char* kTokenFile = "token";

/// Throws what the hub says is wrong.
nlohmann::json head_of(const Bytes& answer) {
  const Packet packet = read_packet(answer);
  if (const auto error = error_in(packet)) throw *error;
  return packet.head;
}

void keep_token(const std::filesystem::path& path, const std::string& token) {
  AtomicFile file(path, AtomicFile::For::owner);
  file.write(std::as_bytes(std::span(token)));
  file.commit();
}

}  // namespace

std::string read_token(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.contents();
  std::string token(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::erase_if(token, [](unsigned char c) { return std::isspace(c) != 0; });
  if (token.empty()) {
    throw Error(ErrorCode::invalid_argument, "join", path.string(), "has no token in it");
  }
  return token;
}

std::optional<RunFacts> ask_facts(Courier& courier, const Client::Stop& stop) {
  const Bytes answer = courier.carry({.method = "GET", .path = "/v1/run", .body = {}}, stop);
  if (answer.empty()) return {};
  const nlohmann::json head = head_of(answer);
  require_same_version(head);
  RunFacts facts{.run = text(head, "run"),
                 .settings = text(head, "settings"),
                 .terms = terms_from(head.at("terms")),
                 .private_data = flag(head, "private_data"),
                 .finished = flag(head, "finished"),
                 .round = whole_number(head, "round"),
                 .name = text(head, "name")};
  const std::string right = text(head, "right");
  for (const Right one : {Right::work, Right::invite, Right::read}) {
    if (right == name_of(one)) facts.right = one;
  }
  return facts;
}

std::optional<RunFacts> enrol(Client& client, Courier& courier, const std::string& given,
                              const std::string& name, const std::filesystem::path& folder,
                              const Client::Stop& stop) {
  const auto file = folder / kTokenFile;
  if (std::filesystem::exists(file)) {
    client.set_token(read_token(file));
    try {
      return ask_facts(courier, stop);
    } catch (const Error& error) {
      // Another hub may be there by now; else whoever runs this one does not want this member.
      if (given.empty() || error.subject() != "token") throw;
    }
  }
  if (given.empty()) {
    throw Error(ErrorCode::invalid_argument, "join", "DGC_TOKEN", "is not set",
                "the hub prints a line with it; or --token-file FILE");
  }
  client.set_token(given);
  auto facts = ask_facts(courier, stop);
  if (!facts || facts->right == Right::work) return facts;
  if (facts->right == Right::read) {
    throw Error(ErrorCode::invalid_argument, "join", fmt::format("token '{}'", facts->name),
                "is for looking at the run only", "ask for one to work with");
  }
  const Bytes answer = courier.carry(
      {.method = "POST", .path = "/v1/enroll", .body = write_packet({{"name", name}})}, stop);
  if (answer.empty()) return {};
  const nlohmann::json head = head_of(answer);
  const std::string token = text(head, "token");
  keep_token(file, token);
  client.set_token(token);
  facts->name = text(head, "name");
  facts->right = Right::work;
  return facts;
}

}  // namespace dgc::hub
