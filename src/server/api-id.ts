import { randomBytes } from "node:crypto";

/** "chatcmpl-" and 24 random letters and digits, as clients know ids. */
export function apiId(prefix: string): string {
  return `${prefix}-${BigInt(`0x${randomBytes(16).toString("hex")}`).toString(36).padStart(25, "0").slice(0, 24)}`;
}
