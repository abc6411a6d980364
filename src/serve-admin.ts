/** Says at start who can see the admin page, where that may not be what somebody meant. */
import type { Config } from './config.ts';
import { isLoopbackName } from './main.ts';
import type { Logger } from './ops/logger.ts';

export function sayAdminAccess({ admin }: Pick<Config, 'admin'>, logger: Pick<Logger, 'warn'>): void {
  const { listen, open, token } = admin;
  if (listen === null || isLoopbackName(listen.host)) return;
  if (open) {
    logger.warn(
      { event: 'admin-open' },
      `the admin page and /api are open to everybody who reaches ${listen.host}:${listen.port} (admin.open): ` +
        'to close them, set admin.token instead',
    );
  } else if (token === undefined) {
    logger.warn(
      { event: 'admin-closed' },
      'nobody can see the admin page and /api, since the admin listener is on no loopback address and has no token: ' +
        'set admin.token (MCP_RESUME_GUARD_ADMIN_TOKEN), or admin.open: true where the network is trusted; ' +
        '/livez, /readyz and /metrics answer all the same',
    );
  }
}
