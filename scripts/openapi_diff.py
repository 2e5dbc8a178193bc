"""Differences of two OpenAPI descriptions, operation by operation, without texts and names of schemas.

Usage: scripts/openapi_diff.py OLD.json NEW.json
"""
import json,sys
old,new=(json.load(open(p)) for p in sys.argv[1:3])
METHODS={'get','put','post','delete','patch','head','options'}
def resolve(doc,node,seen=()):
    while isinstance(node,dict) and '$ref' in node:
        ref=node['$ref']
        if ref in seen: return {'recursive':True}
        seen=seen+(ref,)
        n=doc
        for p in ref[2:].split('/'): n=n[p.replace('~1','/').replace('~0','~')]
        node=n
    return node,seen
def flat(doc,node,path='',seen=(),out=None):
    """Paths of members with their types."""
    out={} if out is None else out
    r=resolve(doc,node,seen)
    if isinstance(r,dict): return out
    node,seen=r
    if not isinstance(node,dict): return out
    for key in ('oneOf','anyOf','allOf'):
        parts=node.get(key)
        if parts:
            rest=[p for p in parts if p.get('type')!='null']
            for p in rest: flat(doc,p,path,seen,out)
            if len(rest)<len(parts): out[path+' nullable']=True
    t=node.get('type')
    if isinstance(t,list):
        if 'null' in t: out[path+' nullable']=True
        t=[x for x in t if x!='null'][0]
    if t: out[path+' type']=t
    for k in ('enum','pattern','minimum','maximum','minLength','maxLength','minItems','maxItems','format','default','additionalProperties','const'):
        if k in node:
            v=node[k]
            if isinstance(v,dict): flat(doc,v,path+'.*',seen,out); continue
            out[f'{path} {k}']=json.dumps(v,sort_keys=True)
    req=set(node.get('required',[]))
    for name,sub in (node.get('properties') or {}).items():
        out[f'{path}.{name}']='required' if name in req else 'optional'
        flat(doc,sub,f'{path}.{name}',seen,out)
    if 'items' in node: flat(doc,node['items'],path+'[]',seen,out)
    return out
def ops(doc):
    return {(m.upper(),p):(o,item.get('parameters',[])) for p,item in doc['paths'].items() for m,o in item.items() if m in METHODS}
def view(doc,entry):
    o,shared=entry
    v={'params':{},'request':{},'responses':{}}
    for p in shared+o.get('parameters',[]):
        p=resolve(doc,p)[0]
        v['params'][f"{p['in']} {p['name']}"]={'required':p.get('required',False),**flat(doc,p.get('schema',{}))}
    b=o.get('requestBody')
    if b:
        b=resolve(doc,b)[0]
        for ct,c in b.get('content',{}).items(): v['request'][ct]=flat(doc,c.get('schema',{}))
    for s,r in o.get('responses',{}).items():
        r=resolve(doc,r)[0]
        v['responses'][s]={ct:flat(doc,c.get('schema',{})) for ct,c in r.get('content',{}).items()} or {'(none)':{}}
        for h in r.get('headers',{}): v['responses'][s]['header '+h]={}
    return v
o,n=ops(old),ops(new)
print('# removed');[print(' ',*k) for k in sorted(set(o)-set(n))]
print('# added');[print(' ',*k) for k in sorted(set(n)-set(o))]
def delta(a,b,prefix,out):
    for k in sorted(set(a)|set(b)):
        x,y=a.get(k),b.get(k)
        if x==y: continue
        if isinstance(x,dict) and isinstance(y,dict): delta(x,y,prefix+[k],out)
        elif x is None: out.append(('+',prefix+[k],y if not isinstance(y,dict) else sorted(y)[:40]))
        elif y is None: out.append(('-',prefix+[k],x if not isinstance(x,dict) else sorted(x)[:40]))
        else: out.append(('~',prefix+[k],(x,y)))
for k in sorted(set(o)&set(n)):
    out=[];delta(view(old,o[k]),view(new,n[k]),[],out)
    if out:
        print('##',*k)
        for s,p,v in out: print('  ',s,' | '.join(p),'' if v is True else v)
