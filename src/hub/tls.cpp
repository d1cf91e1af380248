#include "hub/tls.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "base/file.h"
#include "dgc/error.h"
#include "engine/secret.h"

namespace dgc::hub {
namespace {

namespace fs = std::filesystem;
namespace ssl = boost::asio::ssl;

constexpr long kYears = 10;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Memory = std::unique_ptr<BIO, Freed<BIO_free>>;

[[noreturn]] void fail(const fs::path& file, const std::string& problem,
                       const std::string& hint = {}) {
  throw Error(ErrorCode::io, "hub", file.string(), problem, hint);
}

std::string hex(const unsigned char* bytes, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

std::string pin_of(X509* certificate) {
  unsigned char* der = nullptr;
  const int length = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate), &der);
  if (length <= 0) return {};
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(der, static_cast<std::size_t>(length), hash.data());
  OPENSSL_free(der);
  return "sha256:" + hex(hash.data(), hash.size());
}

void write_private(const fs::path& path, BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  AtomicFile file(path, AtomicFile::For::owner);
  file.write(std::as_bytes(std::span(data, static_cast<std::size_t>(size))));
  file.commit();
}

void make_identity(const Identity& identity) {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate(X509_new());
  if (!key || !certificate) fail(identity.key, "no key can be made");
  X509_set_version(certificate.get(), 2);
  std::uint64_t serial = 0;
  const detail::Nonce nonce = detail::fresh_nonce();
  std::copy_n(reinterpret_cast<const unsigned char*>(nonce.data()), 7,
              reinterpret_cast<unsigned char*>(&serial));
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -86400);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kYears * 365 * 86400);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("dgc hub"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  if (X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0) {
    fail(identity.certificate, "cannot be signed");
  }
  const Memory key_text(BIO_new(BIO_s_mem()));
  const Memory certificate_text(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  PEM_write_bio_X509(certificate_text.get(), certificate.get());
  write_private(identity.key, key_text.get());
  write_private(identity.certificate, certificate_text.get());
}

}  // namespace

Identity identity_in(const fs::path& folder) {
  Identity identity{.certificate = folder / "certificate.pem", .key = folder / "key.pem"};
  if (!fs::exists(identity.certificate) || !fs::exists(identity.key)) make_identity(identity);
  return identity;
}

ssl::context server_context(const Identity& identity) {
  ssl::context context(ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_3_VERSION);
  // Nothing of one connection is of use to another.
  SSL_CTX_set_session_cache_mode(context.native_handle(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.native_handle(), 0);
  boost::system::error_code error;
  context.use_certificate_chain_file(identity.certificate.string(), error);
  if (error) fail(identity.certificate, "is no certificate: " + error.message(), "give PEM files");
  context.use_private_key_file(identity.key.string(), ssl::context::pem, error);
  if (error) fail(identity.key, "is not the key of the certificate: " + error.message());
  return context;
}

ssl::context client_context(bool has_pin) {
  ssl::context context(ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_3_VERSION);
  if (has_pin) {
    context.set_verify_mode(ssl::verify_none);  // pin_of_peer() is compared in its place
  } else {
    context.set_default_verify_paths();
    context.set_verify_mode(ssl::verify_peer);
  }
  return context;
}

std::string pin_of(const fs::path& file) {
  std::FILE* const handle = std::fopen(file.c_str(), "r");
  if (handle == nullptr) fail(file, "cannot be read");
  const Certificate certificate(PEM_read_X509(handle, nullptr, nullptr, nullptr));
  std::fclose(handle);
  if (!certificate) fail(file, "is no certificate", "give a PEM file");
  return pin_of(certificate.get());
}

std::string pin_of_peer(SSL* connection) {
  const Certificate certificate(SSL_get1_peer_certificate(connection));
  return certificate ? pin_of(certificate.get()) : std::string();
}

bool is_pin(const std::string& text) {
  return text.starts_with("sha256:") && text.size() == 7 + 2 * SHA256_DIGEST_LENGTH &&
         std::all_of(text.begin() + 7, text.end(),
                     [](unsigned char c) { return std::isxdigit(c) != 0; });
}

bool same_pin(std::string a, std::string b) {
  const auto lower = [](std::string& text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  };
  lower(a);
  lower(b);
  return a == b;
}

}  // namespace dgc::hub
