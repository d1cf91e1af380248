#include "hub/enrolment.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/file.h"
#include "dgc/error.h"
#include "dgc/version.h"

namespace dgc::hub {
namespace {

constexpr const char* kTokenFile = "token";

/// Throws what the hub says is wrong.
nlohmann::json head_of(const Bytes& answer) {
  const Packet packet = read_packet(answer);
  if (const auto error = error_in(packet)) throw *error;
  return packet.head;
}

std::string kept_token(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file) || std::filesystem::file_size(file) == 0) return {};
  const MappedFile kept(file);
  return {reinterpret_cast<const char*>(kept.contents().data()), kept.contents().size()};
}

void keep_token(const std::filesystem::path& path, const std::string& token) {
  const ::mode_t before = ::umask(0077);
  AtomicFile file(path);
  ::umask(before);
  file.write(std::as_bytes(std::span(token)));
  file.commit();
}

}  // namespace

std::optional<RunFacts> ask_facts(Courier& courier, const Client::Stop& stop) {
  const Bytes answer = courier.carry({.method = "GET", .path = "/v1/run", .body = {}}, stop);
  if (answer.empty()) return {};
  const nlohmann::json head = head_of(answer);
  const std::string version = text(head, "version");
  const std::uint64_t protocol = whole_number(head, "protocol");
  if (version != DGC_VERSION || protocol != kProtocol) {
    throw Error(ErrorCode::configuration_mismatch, "join", "version",
                fmt::format("the hub has dgc {} (protocol {}), this is dgc {} (protocol {})",
                            version, protocol, DGC_VERSION, kProtocol),
                "install the same version on both");
  }
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
  if (const std::string kept = kept_token(file); !kept.empty()) {
    client.set_token(kept);
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
