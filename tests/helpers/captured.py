"""The settings of each method with which captured steps are compared with eager ones."""

from __future__ import annotations

from typing import Any

from attendrop.methods import make_method, parse_method

from .settings import SETTINGS

# A usual setting, other ways in which a method works, and strengths that change from step to step.
ROWS = {
    "addrop": [
        "addrop:p=0.4,q=0.5,layers=all",
        "addrop:attribution=rd,layers=all,cross_tuning=False",
        "addrop:p=0.2..0.6,q=0..0.5,layers=all,cross_tuning=False",
    ],
    "attendout": [
        "attendout:T=3,samples=6,reward_on=cached,active=0.5,init_drop=0.4,explore=0.5",
        "attendout:T=3,reward_on=cached,init_drop=0.4 + addrop:p=0.5,q=0.5,layers=all,cross_tuning=False + rdrop",
    ],
    "attention_dropout": ["attention_dropout:p=0.3", "attention_dropout:p=0.1..0.5,renormalise=True,pattern=span"],
    "attention_layerdrop": ["attention_layerdrop:p=0.5", "attention_layerdrop:p=0..0.8"],
    "child_tuning": ["child_tuning:p=0.4", "child_tuning:p=0.3..0.9", "child_tuning:variant=D,p=0.5,samples=4"],
    "concrete_dropout": ["concrete_dropout:init=0.3,lr=0.05"],
    "dropconnect": ["dropconnect:p=0.3", "dropconnect:p=0..0.5"],
    "drophead": ["drophead:p=0.4", "drophead:p=0.3,schedule=constant"],
    "headmask": ["headmask:share=0.1..0.6,by=importance", "headmask:n=3", "headmask:share=0..0.5"],
    "hiddencut": ["hiddencut:ratio=0.1..0.6,weight=0..2", "hiddencut:by=gradient,ratio=0.3", "hiddencut:by=random"],
    "layerdrop": ["layerdrop:p=0.5", "layerdrop:p=0..0.9"],
    "mixout": ["mixout:p=0.7", "mixout:p=0.1..0.6,pattern=element"],
    "neftune": ["neftune:alpha=0..5"],
    "hype": ["hype:sigma=0..0.5", "hype:noise=uniform,sigma=0.1"],
    "confidence_penalty": ["confidence_penalty:beta=0..0.5"],
    "label_smoothing": ["label_smoothing:epsilon=0..0.3"],
    "sam": ["sam:rho=0.3", "sam:rho=0..0.5 + rdrop"],
    "asam": ["asam:rho=0.5"],
    "freelb": ["freelb:epsilon=0.5,step_size=0.3", "freelb:epsilon=0..0.8,steps=2,step_size=0.3 + rdrop"],
    "smart": [
        "smart:epsilon=0.3,sigma=0.1,step_size=0.2",
        "smart:epsilon=0.3,sigma=0.1,step_size=0.2,weight=0..2,mu=2..0,steps=2",
    ],
    "lora_dropout": ["lora_dropout:samples=2", "lora_dropout:p=0..0.8"],
    "hiddenkey": ["hiddenkey:p_key=0..0.5,p_hidden=0.3,alpha=0..2"],
    "cutoff": ["cutoff:ratio=0..0.5,weight=0..2", "cutoff:kind=token", "cutoff:kind=feature"],
    "hidden_mixup": ["hidden_mixup:alpha=0..2", "hidden_mixup + rdrop"],
    "noisytune": ["noisytune:strength=0.5"],
    "r3f": ["r3f:epsilon=0.5,weight=0..5", "r3f:noise=normal,epsilon=0.1"],
    "rdrop": ["rdrop", "rdrop:alpha=0..3 + attention_dropout:p=0.2"],
    "scal": ["scal:epsilon=0.5,alpha=0.2", "scal:epsilon=0..1,alpha=0..1"],
    "scheduled_dropout": ["scheduled_dropout", "scheduled_dropout:start=0.3,slopes=[0.2,-0.6]"],
    "scores_dropout": ["scores_dropout:p=0.3", "scores_dropout:p=0..0.5,pattern=element"],
    "supcon": ["supcon:weight=0.5", "supcon:weight=0..0.9,reduction=sum"],
    "softtriple": ["softtriple:centers=3", "softtriple:weight=0.2..0.8,centers=2,lr=0.05 + rdrop"],
    "agm": ["agm:share=0.3", "agm:share=0..0.5,weight=0..2", "agm:by=random"],
    "bi_drop": ["bi_drop:p=0.4", "bi_drop:p=0.4,by=scaling"],
    "functional_sam": ["functional_sam:rho=0.3", "functional_sam:rho=0..0.5 + rdrop"],
    "structure_mask": ["structure_mask"],
    "supertickets": ["supertickets"],
    "ema": ["ema:decay=0.9", "ema:decay=0.5,warmup=False + attention_dropout:p=0.2"],
    "l2_sp": ["l2_sp:alpha=0.5"],
    "reinit": ["reinit:blocks=1"],
    "llrd": ["llrd:decay=0.5"],
    "freeze": ["freeze:blocks=1", "freeze:blocks=1 + addrop:p=0.5,q=0.5,layers=all,cross_tuning=False"],
    "lp_ft": ["lp_ft:share=0.5"],
    "wise_ft": ["wise_ft:alpha=0.4"],
    "deni": [
        "deni:models=3,noise_on=trained,start=0,end=0.5,every=0.25,ensemble=0.7",
        "deni:models=2,start=0,end=1,every=0.25 + cutoff",
    ],
    "swa": ["swa:start=0.2", "swa:start=0,every=2"],
    "unidrop": ["unidrop:p_k=0.2,p_d=0.3", "unidrop:fd1=0..0.3,fd2=0.1..1,layerdrop=0..0.5,p_d=0.5..0.1"],
}

# Of a method without a row the fields of its usual setting.
CAPTURED = {**ROWS, **{name: [name] for name in SETTINGS if name not in ROWS}}


def make_methods(text: str) -> list[Any]:
    """The methods of a text of `CAPTURED`; several are joined by " + "."""
    if text in SETTINGS:
        return [make_method(text, SETTINGS[text].usual)]
    return [parse_method(part) for part in text.split(" + ")]
