/**
 * What the published conformance scenarios ask a server to offer, once, for both SDK generations: a method name and what
 * it answers. The wording of names and texts is that of the scenario descriptions.
 */

/** What a handler may do beside answering. */
export interface CallContext {
  readonly progressToken: string | number | undefined;
  notify(method: string, params: Record<string, unknown>): Promise<void>;
  /** Sends a request to the client and resolves with its result. */
  ask(method: 'sampling/createMessage' | 'elicitation/create', params: Record<string, unknown>): Promise<object>;
  closeStream(): void;
  fail(code: number, message: string, data?: unknown): Error;
}

type Params = Record<string, unknown>;
export type Answer = Record<string, unknown>;
type Handler = (params: Params, context: CallContext) => Answer | Promise<Answer>;

export const CAPABILITIES = {
  tools: {},
  resources: { subscribe: true },
  prompts: {},
  logging: {},
  completions: {},
};

const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==';
const SILENCE = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=';

const text = (value: string) => ({ type: 'text', text: value });
const image = { type: 'image', data: PIXEL, mimeType: 'image/png' };
const says = (value: string): Answer => ({ content: [text(value)] });
const pause = (milliseconds: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, milliseconds));

const object = (properties: object = {}, required: string[] = []) => ({
  type: 'object' as const,
  properties,
  required,
});

interface Tool {
  readonly inputSchema: { type: 'object' } & Record<string, unknown>;
  run(args: Params, context: CallContext): Answer | Promise<Answer>;
}

const elicits = (message: string, properties: object): Tool => ({
  inputSchema: object(),
  run: async (_, { ask }) => {
    const answer = (await ask('elicitation/create', { message, requestedSchema: object(properties) })) as Params;
    return says(`Elicitation completed: action=${answer['action']}, content=${JSON.stringify(answer['content'])}`);
  },
});

const titled = (count: number, noun: string) =>
  ['First', 'Second', 'Third']
    .slice(0, count)
    .map((title, at) => ({ const: `value${at + 1}`, title: `${title} ${noun}` }));
const OPTIONS = ['option1', 'option2', 'option3'];

const TOOLS: Record<string, Tool> = {
  test_simple_text: { inputSchema: object(), run: () => says('This is a simple text response for testing.') },
  test_image_content: { inputSchema: object(), run: () => ({ content: [image] }) },
  test_audio_content: {
    inputSchema: object(),
    run: () => ({ content: [{ type: 'audio', data: SILENCE, mimeType: 'audio/wav' }] }),
  },
  test_embedded_resource: {
    inputSchema: object(),
    run: () => ({
      content: [
        {
          type: 'resource',
          resource: {
            uri: 'test://embedded-resource',
            mimeType: 'text/plain',
            text: 'This is an embedded resource content.',
          },
        },
      ],
    }),
  },
  test_multiple_content_types: {
    inputSchema: object(),
    run: () => ({
      content: [
        text('Multiple content types test:'),
        image,
        {
          type: 'resource',
          resource: {
            uri: 'test://mixed-content-resource',
            mimeType: 'application/json',
            text: '{"test":"data","value":123}',
          },
        },
      ],
    }),
  },
  test_tool_with_logging: {
    inputSchema: object(),
    run: async (_, { notify }) => {
      const log = (data: string): Promise<void> => notify('notifications/message', { level: 'info', data });
      await log('Tool execution started');
      await pause(50);
      await log('Tool processing data');
      await pause(50);
      await log('Tool execution completed');
      return says('logged');
    },
  },
  test_tool_with_progress: {
    inputSchema: object(),
    run: async (_, { notify, progressToken }) => {
      for (const progress of [0, 50, 100]) {
        if (progressToken !== undefined) {
          await notify('notifications/progress', { progressToken, progress, total: 100 });
        }
        await pause(50);
      }
      return says('done');
    },
  },
  test_error_handling: {
    inputSchema: object(),
    run: () => ({ isError: true, ...says('This tool intentionally returns an error for testing') }),
  },
  test_sampling: {
    inputSchema: object({ prompt: { type: 'string' } }, ['prompt']),
    run: async ({ prompt }, { ask }) => {
      const messages = [{ role: 'user', content: text(String(prompt)) }];
      const { content } = (await ask('sampling/createMessage', { messages, maxTokens: 100 })) as { content: Params };
      return says(`LLM response: ${content['text']}`);
    },
  },
  test_elicitation: {
    inputSchema: object({ message: { type: 'string' } }, ['message']),
    run: async ({ message }, { ask }) => {
      const properties = { username: { type: 'string' }, email: { type: 'string' } };
      const requestedSchema = object(properties, ['username', 'email']);
      return says(`User response: ${JSON.stringify(await ask('elicitation/create', { message, requestedSchema }))}`);
    },
  },
  test_elicitation_sep1034_defaults: elicits('Defaults, please', {
    name: { type: 'string', default: 'John Doe' },
    age: { type: 'integer', default: 30 },
    score: { type: 'number', default: 95.5 },
    status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
    verified: { type: 'boolean', default: true },
  }),
  test_elicitation_sep1330_enums: elicits('Choices, please', {
    untitledSingle: { type: 'string', enum: OPTIONS },
    titledSingle: { type: 'string', oneOf: titled(3, 'Option') },
    legacyEnum: {
      type: 'string',
      enum: ['opt1', 'opt2', 'opt3'],
      enumNames: ['Option One', 'Option Two', 'Option Three'],
    },
    untitledMulti: { type: 'array', items: { type: 'string', enum: OPTIONS } },
    titledMulti: { type: 'array', items: { anyOf: titled(3, 'Choice') } },
  }),
  json_schema_2020_12_tool: {
    inputSchema: {
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      $defs: { address: { type: 'object', properties: { street: { type: 'string' }, city: { type: 'string' } } } },
      type: 'object',
      properties: { name: { type: 'string' }, address: { $ref: '#/$defs/address' } },
      additionalProperties: false,
    },
    run: () => says('schema'),
  },
  test_reconnection: {
    inputSchema: object(),
    run: async (_, { closeStream }) => {
      await pause(50);
      closeStream();
      await pause(200);
      return says('Reconnection test completed successfully');
    },
  },
};

const RESOURCES: Record<string, Params> = {
  'test://static-text': { mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
  'test://static-binary': { mimeType: 'image/png', blob: PIXEL },
  'test://watched-resource': { mimeType: 'text/plain', text: 'watched' },
};

type Prompt = { arguments: string[]; messages(args: Params): object[] };
const user = (content: object) => ({ role: 'user', content });
const PROMPTS: Record<string, Prompt> = {
  test_simple_prompt: { arguments: [], messages: () => [user(text('This is a simple prompt for testing.'))] },
  test_prompt_with_arguments: {
    arguments: ['arg1', 'arg2'],
    messages: ({ arg1, arg2 }) => [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  },
  test_prompt_with_embedded_resource: {
    arguments: ['resourceUri'],
    messages: ({ resourceUri: uri }) => [
      user({
        type: 'resource',
        resource: { uri, mimeType: 'text/plain', text: 'Embedded resource content for testing.' },
      }),
      user(text('Please process the embedded resource above.')),
    ],
  },
  test_prompt_with_image: {
    arguments: [],
    messages: () => [user(image), user(text('Please analyze the image above.'))],
  },
};

export const HANDLERS = {
  'tools/list': () => ({
    tools: Object.entries(TOOLS).map(([name, { inputSchema }]) => ({ name, description: name, inputSchema })),
  }),
  'tools/call': ({ name, arguments: args }, context) => {
    const tool = TOOLS[String(name)];
    if (tool === undefined) throw context.fail(-32602, `Unknown tool: ${name}`);
    return tool.run((args ?? {}) as Params, context);
  },
  'resources/list': () => ({
    resources: Object.entries(RESOURCES).map(([uri, { mimeType }]) => ({ uri, name: uri, description: uri, mimeType })),
  }),
  'resources/templates/list': () => ({
    resourceTemplates: [{ uriTemplate: 'test://template/{id}/data', name: 'template', mimeType: 'application/json' }],
  }),
  'resources/read': ({ uri }, { fail }) => {
    const known = RESOURCES[String(uri)];
    if (known !== undefined) return { contents: [{ uri, ...known }] };
    const id = /^test:\/\/template\/([^/]+)\/data$/.exec(String(uri))?.[1];
    if (id === undefined) throw fail(-32602, 'Resource not found', { uri });
    const body = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
    return { contents: [{ uri, mimeType: 'application/json', text: body }] };
  },
  'resources/subscribe': () => ({}),
  'resources/unsubscribe': () => ({}),
  'prompts/list': () => ({
    prompts: Object.entries(PROMPTS).map(([name, prompt]) => ({
      name,
      description: name,
      arguments: prompt.arguments.map((argument) => ({ name: argument, description: argument, required: true })),
    })),
  }),
  'prompts/get': ({ name, arguments: args }, { fail }) => {
    const prompt = PROMPTS[String(name)];
    if (prompt === undefined) throw fail(-32602, `Unknown prompt: ${name}`);
    return { messages: prompt.messages((args ?? {}) as Params) };
  },
  'completion/complete': () => ({ completion: { values: ['paris', 'park', 'party'], total: 3, hasMore: false } }),
  'logging/setLevel': () => ({}),
} satisfies Record<string, Handler>;

export type HandledMethod = keyof typeof HANDLERS;

/** The handler of a method under one type. */
export function handlerOf(method: HandledMethod): Handler {
  return HANDLERS[method];
}
