// Certificates: made at the hub's first start, and recognised by members.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <filesystem>
#include <string>

namespace dgc::hub {

/// Where a certificate and its private key are.
struct Identity {
  std::filesystem::path certificate, key;  ///< PEM
};

/// The identity in the folder; made where there is none. The key is for its owner alone. Throws
/// Error(io).
Identity identity_in(const std::filesystem::path& folder);

/// TLS 1.3 for a hub. Throws Error(io) naming the file that cannot be used.
boost::asio::ssl::context server_context(const Identity& identity);
/// TLS 1.3 for a member. With a pin, that alone says who the hub is; without, the system's
/// certificate authorities do.
boost::asio::ssl::context client_context(bool has_pin);

/// "sha256:" and the hash of the certificate's public key: what --pin has.
std::string pin_of(const std::filesystem::path& certificate);
/// Of the hub at the other end. Empty where it has shown none.
std::string pin_of_peer(SSL* connection);
/// Whether it is the form of a pin. Upper case is as good.
bool is_pin(const std::string& text);
bool same_pin(std::string a, std::string b);

}  // namespace dgc::hub
