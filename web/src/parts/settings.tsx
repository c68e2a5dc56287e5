// How the playground samples. An empty field leaves the choice to the server.
import type { Settings } from "../generate";
import { Panel } from "./panel";

interface Props {
  settings: Settings;
  onChange: (settings: Settings) => void;
}

export function SettingsForm({ settings, onChange }: Props) {
  const set = (part: Partial<Settings>) => onChange({ ...settings, ...part });
  return (
    <Panel title="Sampling" class="settings">
      <label>
        System message
        <textarea
          rows={3}
          value={settings.system}
          onInput={(e) => set({ system: e.currentTarget.value })}
        />
      </label>
      <NumberField
        label="Temperature"
        value={settings.temperature}
        max={2}
        step={0.1}
        onChange={(temperature) => set({ temperature })}
      />
      <NumberField
        label="Top p"
        value={settings.top_p}
        max={1}
        step={0.05}
        onChange={(top_p) => set({ top_p })}
      />
      <NumberField
        label="Max tokens"
        value={settings.max_tokens}
        min={1}
        step={1}
        onChange={(max_tokens) => set({ max_tokens: max_tokens ?? 256 })}
      />
      <NumberField label="Seed" value={settings.seed} step={1} onChange={(seed) => set({ seed })} />
    </Panel>
  );
}

interface NumberProps {
  label: string;
  value: number | null;
  min?: number;
  max?: number;
  step: number;
  onChange: (value: number | null) => void;
}

function NumberField({ label, value, min = 0, max, step, onChange }: NumberProps) {
  return (
    <label>
      {label}
      <input
        type="number"
        inputMode="decimal"
        min={min}
        {...(max !== undefined && { max })}
        step={step}
        value={value ?? ""}
        placeholder="the model's"
        onChange={(e) => {
          const { value: text, validity, valueAsNumber } = e.currentTarget;
          if (text === "") onChange(null);
          else if (validity.valid) onChange(valueAsNumber);
          else e.currentTarget.reportValidity();
        }}
      />
    </label>
  );
}
