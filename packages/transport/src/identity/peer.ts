import { X509Certificate } from 'node:crypto';
import { isNodeId, MuserError } from '@muser/protocol';
import { isRole, type PeerIdentity } from './types.js';

const PEER_URI = /^URI:muser:([a-z]{1,16}):([a-z0-9]{1,64})$/;

/**
 * Reads role and node id from a certificate whose chain has been verified already: SAN URI `muser:<role>:<nodeId>`, common
 * name = node id.
 *
 * @param certificate parsed, or its DER bytes
 * @throws MuserError CERTIFICATE_INVALID when it is not a certificate of a muser node
 */
export function peerOf(certificate: X509Certificate | Uint8Array): PeerIdentity {
  const parsed = certificate instanceof X509Certificate ? certificate : parse(certificate);
  // Node quotes every entry that contains a comma, so that a split cannot be tricked into a second entry.
  const matches = (parsed.subjectAltName ?? '').split(', ').flatMap((entry) => PEER_URI.exec(entry) ?? []);
  const [whole, role, nodeId] = matches;
  if (whole === undefined || matches.length !== 3 || !isRole(role) || nodeId === undefined || !isNodeId(nodeId)) {
    throw new MuserError('CERTIFICATE_INVALID', 'the certificate names no muser node (SAN URI muser:<role>:<nodeId>)');
  }
  if (parsed.subject !== `CN=${nodeId}`) {
    throw new MuserError('CERTIFICATE_INVALID', `the certificate's subject is not its node id ${nodeId}`);
  }
  return { role, nodeId, notAfter: new Date(parsed.validTo), serial: parsed.serialNumber };
}

function parse(der: Uint8Array): X509Certificate {
  try {
    return new X509Certificate(der);
  } catch (cause) {
    throw new MuserError('CERTIFICATE_INVALID', 'the certificate cannot be parsed', { cause });
  }
}
