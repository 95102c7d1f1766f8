// A real authorization server for the tests of sign-in: oidc-provider, with users but without pages to click.
//
// Whoever asks for authorization is signed in at once as the user in `login_hint`. Tokens for a resource on `127.0.0.1` are
// signed (JWT), those for one on `localhost` are opaque and have to be introspected. They live as long as the order says.

import { Provider } from 'oidc-provider';

const { port, groups, scopes, lifetime, secret } = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${port}`;

const provider = new Provider(issuer, {
  clients: [
    // The gateway itself, which may only introspect.
    { client_id: 'gateway', client_secret: secret, grant_types: [], response_types: [], redirect_uris: [] },
  ],
  scopes: ['openid', 'offline_access', ...scopes],
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    introspection: { enabled: true, allowedPolicy: () => true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_context, resource) => ({
        scope: scopes.join(' '),
        accessTokenFormat: new URL(resource).hostname === 'localhost' ? 'opaque' : 'jwt',
        accessTokenTTL: lifetime,
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  extraTokenClaims: (_context, token) => ({ groups: groups[token.accountId] ?? [] }),
  rotateRefreshToken: true,
  issueRefreshToken: async (_context, client) => client.grantTypeAllowed('refresh_token'),
  pkce: { required: () => true },
  findAccount: (_context, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
  interactions: { url: (_context, interaction) => `/auto/${interaction.uid}` },
});

provider.use(async (context, next) => {
  if (!context.path.startsWith('/auto/')) return next();
  const { params } = await provider.interactionDetails(context.req, context.res);
  const accountId = params.login_hint;
  const grant = new provider.Grant({ accountId, clientId: params.client_id });
  grant.addOIDCScope(`openid offline_access ${params.scope ?? ''}`);
  for (const resource of [params.resource].flat().filter(Boolean)) {
    grant.addResourceScope(resource, params.scope ?? '');
  }
  const result = { login: { accountId }, consent: { grantId: await grant.save() } };
  context.redirect(await provider.interactionResult(context.req, context.res, result));
});

provider.listen(port, '127.0.0.1');
