// How somebody who was given a hub's address and a token becomes a member.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "hub/client.h"
#include "hub/journal.h"
#include "hub/terms.h"

namespace dgc::hub {

/// What a hub tells everybody with a token.
struct RunFacts {
  std::string run;       ///< its name: another one after each new `dgc serve`
  std::string settings;  ///< JSON; what it trains
  Terms terms;
  bool private_data = false, finished = false;
  std::uint64_t round = 0;
  std::string name;  ///< of the token
  Right right = Right::work;
};

/// The token in a file, without the end of the line. Throws Error: io, invalid_argument where there
/// is none.
std::string read_token(const std::filesystem::path& path);

/// Nothing where `stop` said so. Throws Error: configuration_mismatch for a hub of another version,
/// which is named; what the hub says, for a token that it does not know.
std::optional<RunFacts> ask_facts(Courier& courier, const Client::Stop& stop);

/// The same with the token that is to be used from now on, which `client` has then: the one that
/// the folder keeps, else `given`. An invitation is exchanged for a token of the member's own,
/// called `name` or like it, which the folder keeps for the next time.
std::optional<RunFacts> enrol(Client& client, Courier& courier, const std::string& given,
                              const std::string& name, const std::filesystem::path& folder,
                              const Client::Stop& stop);

}  // namespace dgc::hub
